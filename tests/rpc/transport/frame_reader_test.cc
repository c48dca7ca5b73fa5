#include <weft/rpc/transport/frame_reader.h>

#include <cstring>
#include <random>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rpc::frame_reader_test {
namespace {

using namespace test;
using Bytes = std::vector<std::byte>;

OutboundFrame frame(std::uint64_t id, std::size_t text, const std::vector<std::size_t>& attachments) {
  auto message = OutgoingMessage::request(1);
  message->argument(0).set_text(std::string(text, static_cast<char>('a' + id % 26)));
  for (const std::size_t size : attachments) {
    Buffer buffer = Buffer::allocate(size);
    for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = std::byte(i * 13 + id);
    message->attach(buffer);
  }
  return message->seal_request({1, 1, 0}, id, 0);
}

// Feeds the reader at most `most` bytes, as a socket would: into its targets, in order. Returns the number of
// bytes that it took.
std::size_t feed(FrameReader& reader, std::span<const std::byte> bytes, std::size_t most) {
  std::size_t taken = 0;
  most = std::min(most, bytes.size());
  for (const auto target : reader.targets()) {
    EXPECT_FALSE(target.empty());
    const std::size_t n = std::min(target.size(), most - taken);
    std::memcpy(target.data(), bytes.data() + taken, n);
    taken += n;
    if (taken == most) break;
  }
  reader.advance(taken);
  return taken;
}

void expect_same(const InboundFrame& got, const OutboundFrame& sent) {
  const auto header = sent.head.bytes().subspan(Prefix::size);
  ASSERT_EQ(got.header.size(), header.size());
  ASSERT_EQ(std::memcmp(got.header.data(), header.data(), header.size()), 0);
  const auto attachments = test::attachments_of(got);
  ASSERT_EQ(attachments.size(), sent.attachments.size());
  for (std::size_t i = 0; i < sent.attachments.size(); ++i) {
    ASSERT_EQ(attachments[i].size(), sent.attachments[i].size());
    if (sent.attachments[i].empty()) continue;
    ASSERT_EQ(std::memcmp(attachments[i].data(), sent.attachments[i].data(), sent.attachments[i].size()), 0);
  }
}

// Expects the same frames, however the stream is split into pieces.
template <class Pieces>
void expect_all(const std::vector<OutboundFrame>& frames, Pieces next_piece) {
  std::vector<std::byte> stream;
  for (const auto& one : frames) {
    const auto bytes = bytes_of(one);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  FrameReader reader({});
  std::size_t at = 0, got = 0;
  while (at < stream.size()) {
    at += feed(reader, std::span(stream).subspan(at), next_piece());
    while (auto inbound = reader.next()) {
      ASSERT_LT(got, frames.size());
      expect_same(*inbound, frames[got++]);
    }
  }
  EXPECT_EQ(got, frames.size());
}

std::vector<OutboundFrame> small_frames() {
  std::vector<OutboundFrame> frames;
  frames.push_back(frame(0, 10, {}));
  frames.push_back(frame(1, 200, {1, 64, 0, 65}));
  frames.push_back(OutgoingMessage::plain(FrameKind::ping, 3));
  frames.push_back(frame(2, 0, {0}));
  frames.push_back(frame(3, 1, {1000}));
  return frames;
}

std::vector<OutboundFrame> frames_of_all_sizes() {
  auto frames = small_frames();
  frames.push_back(frame(4, 32'000, {}));
  frames.push_back(frame(5, 33'000, {7}));
  frames.push_back(frame(6, 65'536, {70'000, 1}));
  frames.push_back(frame(7, 300'000, {}));
  frames.push_back(frame(8, 1, std::vector<std::size_t>(200, 3)));
  frames.push_back(frame(9, 1, {1'000'000, 64, 1}));
  frames.push_back(frame(10, 5, {}));
  return frames;
}

TEST(FrameReader, ReadsByteByByte) {
  expect_all(small_frames(), [] { return std::size_t{1}; });
}

TEST(FrameReader, ReadsFramesSplitInTwoAnywhere) {
  const auto frames = small_frames();
  std::size_t total = 0;
  for (const auto& one : frames) total += bytes_of(one).size();
  for (std::size_t cut = 1; cut < total; ++cut) {
    bool first = true;
    expect_all(frames, [&] { return std::exchange(first, false) ? cut : total; });
  }
}

TEST(FrameReader, ReadsAllFramesAtOnce) {
  expect_all(frames_of_all_sizes(), [] { return SIZE_MAX; });
}

TEST(FrameReader, ReadsRandomPieces) {
  const auto frames = frames_of_all_sizes();
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random(seed);
    expect_all(frames, [&] { return std::size_t{1} << random() % 19; });
  }
}

TEST(FrameReader, AnAttachmentIsReadIntoItsFinalPlace) {
  FrameReader reader({});
  const auto bytes = bytes_of(frame(1, 10, {500'000}));
  std::size_t at = feed(reader, bytes, 4096);
  ASSERT_FALSE(reader.next());
  const std::byte* place = reader.targets().front().data();
  while (at < bytes.size()) at += feed(reader, std::span(bytes).subspan(at), SIZE_MAX);
  const auto got = reader.next();
  ASSERT_TRUE(got);
  EXPECT_GE(place, got->attachments.front().data());
  EXPECT_LT(place, got->attachments.front().data() + 4096);
}

TEST(FrameReader, RefusesABadPrefixBeforeItMakesRoom) {
  Limits limits;
  limits.header = 1 << 20;
  for (const auto& [offset, value, kind] :
       {std::tuple{std::size_t{0}, 'X', ErrorKind::protocol_error},
        std::tuple{std::size_t{5}, '\x0c', ErrorKind::protocol_error},
        std::tuple{std::size_t{11}, '\xff', ErrorKind::resource_exhausted},
        std::tuple{std::size_t{31}, '\xff', ErrorKind::resource_exhausted}}) {
    auto bytes = bytes_of(frame(1, 1, {}));
    bytes[offset] = std::byte(value);
    FrameReader reader(limits);
    feed(reader, bytes, Prefix::size);
    EXPECT_EQ(kind_of([&] { return reader.next(); }), kind);
  }
}

TEST(FrameReader, RefusesABadHeaderBeforeItMakesRoomForAttachments) {
  auto bytes = bytes_of(frame(1, 1, {100}));
  bytes[Prefix::size + 20] ^= std::byte{1};
  FrameReader reader({});
  feed(reader, bytes, SIZE_MAX);
  EXPECT_EQ(kind_of([&] { return reader.next(); }), ErrorKind::protocol_error);
}

// --- Bulk data next to the stream ---

// The stream of a frame of which attachments with sizes in `bulk` are sent as addresses.
std::vector<std::byte> bytes_with_addresses(const OutboundFrame& frame, BulkRange bulk) {
  OutboundFrame small{frame.head, {}, {}};
  std::vector<std::uint64_t> addresses;
  for (const Buffer& attachment : frame.attachments) {
    if (!bulk.contains(attachment.size())) {
      small.attachments.push_back(attachment);
    } else {
      addresses.push_back(reinterpret_cast<std::uintptr_t>(attachment.data()));
    }
  }
  auto bytes = bytes_of(small);
  const auto tail = std::as_bytes(std::span(addresses));
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  return bytes;
}

TEST(FrameReader, BulkIsSentAsItsAddress) {
  constexpr BulkRange bulk{1000, 200000};
  std::vector<OutboundFrame> frames;
  frames.push_back(frame(1, 5, {10, 1000, 0, 999, 5000}));
  frames.push_back(frame(2, 5, {199999}));
  frames.push_back(frame(3, 100000, {200000}));
  frames.push_back(frame(4, 5, {64}));
  std::vector<std::byte> stream;
  for (const auto& one : frames) {
    const auto bytes = bytes_with_addresses(one, bulk);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (const std::size_t most : {std::size_t{1}, std::size_t{37}, std::size_t{100000}, stream.size()}) {
    FrameReader reader({}, nullptr, bulk);
    std::size_t at = 0, got = 0, pulled = 0;
    while (got < frames.size()) {
      if (auto next = reader.next()) {
        expect_same(*next, frames[got++]);
        continue;
      }
      if (!reader.pulls().empty()) {
        for (const auto& [address, into] : reader.pulls()) {
          std::memcpy(into.data(), reinterpret_cast<const void*>(address), into.size());
          ++pulled;
        }
        reader.pulled();
        continue;
      }
      ASSERT_LT(at, stream.size());
      at += feed(reader, std::span(stream).subspan(at), most);
    }
    EXPECT_EQ(at, stream.size());
    EXPECT_EQ(pulled, 3U);
  }
}

TEST(FrameReader, AttachmentsUseMemoryOfThePool) {
  auto pool = std::make_shared<MemoryPool>(64U << 20);
  const auto one = frame(1, 5, {200000});
  const auto bytes = bytes_of(one);
  for (int i = 0; i < 3; ++i) {
    FrameReader reader({}, pool);
    for (std::size_t at = 0; at < bytes.size();) {
      at += feed(reader, std::span(bytes).subspan(at), bytes.size());
      if (auto got = reader.next()) expect_same(*got, one);
    }
  }
  EXPECT_EQ(pool->counts().misses, 1U);
  EXPECT_EQ(pool->counts().hits, 2U);
}

// --- Peers that are not trusted ---

Bytes prefix_of(FrameKind kind, std::uint32_t header_words, std::uint64_t body) {
  Bytes bytes(Prefix::size);
  encode({kind, 0, header_words, 0, 1, body}, PrefixBytes(bytes.data(), Prefix::size));
  return bytes;
}

std::optional<Error> refusal_of(std::span<const std::byte> first) {
  FrameReader reader({});
  reader.guard();
  feed(reader, first, first.size());
  return test::error_of([&] { return reader.next(); });
}

TEST(GuardedFrameReader, AcceptsOnlyASmallHelloFirst) {
  const auto refused = [](FrameKind kind, std::uint32_t words, std::uint64_t body) {
    const auto error = refusal_of(prefix_of(kind, words, body));
    return error ? std::optional(error->kind()) : std::nullopt;
  };
  EXPECT_EQ(refused(FrameKind::hello, Prefix::max_control_header / 8, 0), std::nullopt);
  EXPECT_EQ(refused(FrameKind::goodbye, 10, 0), std::nullopt);
  EXPECT_EQ(refused(FrameKind::hello, Prefix::max_control_header / 8 + 1, 0), ErrorKind::resource_exhausted);
  EXPECT_EQ(refused(FrameKind::hello, 10, 64), ErrorKind::resource_exhausted);
  for (const FrameKind kind :
       {FrameKind::request, FrameKind::reply, FrameKind::ping, FrameKind::credit, FrameKind::lane})
    EXPECT_EQ(refused(kind, 10, 0), ErrorKind::protocol_error);
}

TEST(GuardedFrameReader, BuffersNoMoreThanAHelloBeforeTheHello) {
  FrameReader reader({});
  reader.guard();
  std::size_t room = 0;
  for (const auto target : reader.targets()) room += target.size();
  EXPECT_LE(room, Prefix::size + Prefix::max_control_header);
  const auto hello = bytes_of(OutgoingMessage::hello({1, 1, 0, "peer", 7, {}}));
  feed(reader, hello, hello.size());
  ASSERT_TRUE(reader.next());
  EXPECT_GT(reader.targets().front().size(), Prefix::max_control_header) << "then it reads in larger pieces";
}

TEST(GuardedFrameReader, RecognizesTlsByItsFirstBytes) {
  const Bytes alert{std::byte{21}, std::byte{3}, std::byte{3}, std::byte{0},
                    std::byte{2},  std::byte{2}, std::byte{70}};
  const auto error = refusal_of(alert);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::permission_denied);
  EXPECT_NE(std::string(error->what()).find("TLS"), std::string::npos) << error->what();
}

TEST(GuardedFrameReader, AnnouncesLargeFramesAndSkipsThem) {
  std::vector<std::byte> stream;
  std::vector<OutboundFrame> frames;
  frames.push_back(OutgoingMessage::hello({1, 1, 0, "peer", 7, {}}));
  frames.push_back(frame(1, 10, {200'000, 7}));
  frames.push_back(frame(2, 100'000, {}));
  frames.push_back(frame(3, 10, {100}));
  for (const auto& one : frames) {
    const auto bytes = bytes_of(one);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (const std::size_t most : {std::size_t{11}, std::size_t{30'000}, stream.size()}) {
    for (const bool skip : {false, true}) {
      FrameReader reader({});
      reader.guard();
      std::size_t at = 0, got = 0, announced = 0;
      while (got < frames.size()) {
        if (auto next = reader.next()) {
          const bool large = got == 1 || got == 2;
          EXPECT_EQ(next->header.empty(), skip && large);
          if (!next->header.empty()) expect_same(*next, frames[got]);
          EXPECT_EQ(next->prefix.call_id, got);
          ++got;
        } else if (const Prefix* prefix = reader.announced()) {
          EXPECT_EQ(prefix->call_id, ++announced);
          ASSERT_TRUE(reader.can_skip());
          skip ? reader.skip() : reader.admit(nullptr);
        } else {
          ASSERT_LT(at, stream.size());
          at += feed(reader, std::span(stream).subspan(at), most);
        }
      }
      EXPECT_EQ(announced, 2U) << "small ones are not";
    }
  }
}

}  // namespace
}  // namespace weft::rpc::frame_reader_test
