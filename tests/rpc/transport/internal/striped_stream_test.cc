// A connection over several streams whose peer is hand-written: which bytes use which stream, and how the
// streams end. connection_test.cc runs the contract of Connection over such streams.
#include <weft/rpc/transport/internal/striped_stream.h>

#include <weft/rpc/transport/stream_connection.h>

#include <gtest/gtest.h>

#include "tests/support/byte_stream_pair.h"
#include "tests/support/messages.h"

namespace weft::rpc::striped_stream_test {
namespace {

using namespace std::chrono_literals;
using test::PairedStream;

constexpr std::size_t block = 32'768;  // docs/internals/wire_protocol.md

Buffer filled(std::size_t size, unsigned seed) {
  Buffer buffer = Buffer::allocate(size);
  for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = std::byte(i * 31 + i / 4096 + seed);
  return buffer;
}
std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
OutboundFrame request(std::uint64_t id, const std::vector<std::size_t>& attachments = {}) {
  auto message = OutgoingMessage::request(0);
  for (const std::size_t size : attachments) message->attach(filled(size, static_cast<unsigned>(size + id)));
  return message->seal_request({1, 1, 0}, id, 0);
}
std::string bytes_of(const OutboundFrame& frame) {
  std::string bytes = text(frame.head.bytes());
  for (const Buffer& attachment : frame.attachments)
    bytes += text(attachment.bytes()) + std::string((64 - attachment.size() % 64) % 64, '\0');
  return bytes;
}
// The bytes from position `at` on, on n streams. Blocks from number `first` on are striped.
std::vector<std::string> striped(std::string_view bytes, std::size_t n, std::size_t at = 0,
                                 std::size_t first = 0) {
  std::vector<std::string> streams(n);
  for (; !bytes.empty(); ++at, bytes.remove_prefix(1))
    streams[at / block < first ? 0 : at / block % n] += bytes.front();
  return streams;
}

struct Ended : ConnectionObserver {
  void on_frame(InboundFrame&& frame) override { frames.push_back(std::move(frame)); }
  void on_closed(const Error& reason) override { closed = reason; }

  std::vector<InboundFrame> frames;
  std::optional<Error> closed;
};

class StripedStreamTest : public testing::Test {
 protected:
  ~StripedStreamTest() override {
    streams_.clear();
    loop_->run();
  }
  // capacity: of each direction of each stream.
  void connect(std::size_t streams, std::size_t capacity) {
    std::vector<std::unique_ptr<ByteStream>> lanes;
    for (std::size_t i = 0; i < streams; ++i) {
      auto [ours, theirs] = PairedStream::make(loop_, {.capacity = capacity});
      streams_.push_back(std::move(theirs));
      if (i != 0) {
        lanes.push_back(std::move(ours));
        continue;
      }
      connection_ = make_stream_connection(std::move(ours), loop_, ConnectionOptions{});
      connection_->start(observer_);
    }
    striped_ = connection_->add_lanes(std::move(lanes));
  }
  void connect_striped(std::size_t streams, std::size_t capacity) {
    connect(streams, capacity);
    striped_->stripe_reads();
    striped_->stripe_writes();
  }
  // Reads the available bytes.
  static std::string read(PairedStream& stream) {
    std::string all;
    std::error_code error;
    while (!error) {
      std::byte bytes[60'000];
      const std::span<std::byte> into[] = {bytes};
      all += text(std::span(bytes).first(stream.read(into, error)));
    }
    return all;
  }
  static bool has_ended(PairedStream& stream) {
    std::byte byte;
    const std::span<std::byte> into[] = {{&byte, 1}};
    std::error_code error;
    return stream.read(into, error) == 0 && error == asio::error::eof;
  }
  // Returns the bytes that were not accepted.
  std::string_view write(PairedStream& stream, std::string_view bytes) {
    while (!bytes.empty()) {
      const std::span<const std::byte> from[] = {std::as_bytes(std::span(bytes))};
      std::error_code error;
      const std::size_t n = stream.write(from, error);
      bytes.remove_prefix(n);
      if (n == 0 && loop_->run() == 0) break;
    }
    loop_->run();
    return bytes;
  }
  void write_all(const std::vector<std::string>& streams) {
    for (std::size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(write(*streams_[i], streams[i]), "") << i;
  }
  void finish() { connection_->finish(Error(ErrorKind::shut_down, "that was all")); }
  const std::vector<InboundFrame>& frames() const { return observer_->frames; }
  const std::optional<Error>& closed() const { return observer_->closed; }

  std::shared_ptr<test::ManualLoop> loop_ = std::make_shared<test::ManualLoop>();
  std::shared_ptr<Ended> observer_ = std::make_shared<Ended>();
  std::shared_ptr<Connection> connection_;
  StripedStream* striped_ = nullptr;
  std::vector<std::unique_ptr<PairedStream>> streams_;  // of the peer
};

void expect_request(const InboundFrame& got, std::uint64_t id, const std::vector<std::size_t>& sizes) {
  const OutboundFrame expected = request(id, sizes);
  EXPECT_EQ(got.prefix.call_id, id);
  const auto attachments = test::attachments_of(got);
  ASSERT_EQ(attachments.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    EXPECT_TRUE(text(attachments[i].bytes()) == text(expected.attachments[i].bytes())) << sizes[i];
}

// --- Blocks ---

TEST_F(StripedStreamTest, TheBlockOfTheLastFrameBeforeThemStaysOnTheFirstStream) {
  connect(2, 16 << 20);
  const std::string before = bytes_of(request(1, {3 * block})), after = bytes_of(request(2, {2'000'000}));
  const std::size_t first = (before.size() - 1) / block + 1;
  const auto expected = striped(after, 2, before.size(), first);
  OutboundFrame last = request(1, {3 * block});
  last.sent = [this] { striped_->stripe_writes(); };
  connection_->send(std::move(last));
  connection_->send(request(2, {2'000'000}));
  loop_->run();
  EXPECT_TRUE(read(*streams_[0]) == before + expected[0]);
  EXPECT_TRUE(read(*streams_[1]) == expected[1]);

  // The reader is told with the frame, after which other bytes of its block have arrived.
  write(*streams_[1], expected[1]);
  struct Switch : Ended {
    void on_frame(InboundFrame&& frame) override {
      if (frame.prefix.call_id == 1) stream->stripe_reads();
      Ended::on_frame(std::move(frame));
    }
    StripedStream* stream;
  };
  auto [ours, theirs] = PairedStream::make(loop_, {.capacity = 16 << 20});
  auto [lane, their_lane] = PairedStream::make(loop_, {.capacity = 16 << 20});
  const auto there = make_stream_connection(std::move(ours), loop_, ConnectionOptions{});
  const auto observer = std::make_shared<Switch>();
  there->start(observer);
  std::vector<std::unique_ptr<ByteStream>> lanes;
  lanes.push_back(std::move(lane));
  observer->stream = there->add_lanes(std::move(lanes));
  write(*their_lane, expected[1]);
  write(*theirs, before + expected[0]);
  ASSERT_EQ(observer->frames.size(), 2U);
  expect_request(observer->frames[1], 2, {2'000'000});
}

// --- The end ---

TEST_F(StripedStreamTest, AFinishedConnectionLivesUntilAllBytesAreSent) {
  connect_striped(3, 64 << 10);
  const auto expected = striped(bytes_of(request(7, {4'000'000})), 3);
  connection_->send(request(7, {4'000'000}));
  write(*streams_[0], bytes_of(request(1, {2'000'000})).substr(0, block));  // the rest never arrives
  finish();
  connection_.reset();
  std::vector<std::string> got(3);
  for (int i = 0; i < 100; ++i) {
    loop_->run();
    for (std::size_t lane = 0; lane < 3; ++lane) got[lane] += read(*streams_[lane]);
    loop_->advance(1500ms);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(got[i] == expected[i]) << i;
    EXPECT_TRUE(has_ended(*streams_[i])) << i;
  }
}

TEST_F(StripedStreamTest, AFinishedConnectionClosesOnceTheOtherSideHas) {
  connect_striped(2, 1 << 20);
  finish();
  loop_->run();
  EXPECT_FALSE(closed());
  for (const auto& stream : streams_) stream->close();
  loop_->run();
  ASSERT_TRUE(closed());
  EXPECT_STREQ(closed()->what(), "that was all");
}

TEST_F(StripedStreamTest, AFinishedConnectionDoesNotWaitForAPeerThatReadsNothing) {
  connect_striped(2, 64 << 10);
  connection_->send(request(7, {4'000'000}));
  finish();
  loop_->run();
  loop_->advance(2s);
  loop_->run();
  ASSERT_TRUE(closed());
  EXPECT_STREQ(closed()->what(), "that was all");
}

TEST_F(StripedStreamTest, BothEndsMayFinishWithFramesOnTheStreams) {
  std::vector<std::unique_ptr<ByteStream>> ours, theirs;
  for (int i = 0; i < 3; ++i) {
    auto [first, second] = PairedStream::make(loop_, {.capacity = 64 << 10});
    ours.push_back(std::move(first));
    theirs.push_back(std::move(second));
  }
  std::vector<std::shared_ptr<Ended>> ends;
  const auto start = [&](std::vector<std::unique_ptr<ByteStream>> streams) {
    auto stream = std::make_unique<StripedStream>(std::move(streams), 0, 0);
    stream->stripe_reads();
    stream->stripe_writes();
    auto connection = make_stream_connection(std::move(stream), loop_, ConnectionOptions{});
    connection->start(ends.emplace_back(std::make_shared<Ended>()));
    connection->send(request(1, {4'000'000}));
    return connection;
  };
  const auto here = start(std::move(ours)), there = start(std::move(theirs));
  for (const auto& connection : {here, there})
    connection->finish(Error(ErrorKind::shut_down, "that was all"));
  loop_->run();  // without waiting
  for (const auto& end : ends) EXPECT_TRUE(end->closed);
}

// --- Lost streams ---

TEST_F(StripedStreamTest, AStreamThatIsLostClosesTheConnectionInItsTurn) {
  connect_striped(2, 1 << 20);
  streams_[1]->close();
  loop_->run();
  EXPECT_FALSE(closed());
  const std::string first = bytes_of(request(1)), last = bytes_of(request(2, {2'000'000}));
  write(*streams_[0], (first + last).substr(0, block));
  EXPECT_EQ(frames().size(), 1U);
  ASSERT_TRUE(closed());
  EXPECT_EQ(closed()->kind(), ErrorKind::peer_lost);
  EXPECT_TRUE(has_ended(*streams_[0]));
}

TEST_F(StripedStreamTest, AStreamThatIsLostClosesTheConnectionThatWritesToIt) {
  connect_striped(2, 16 << 20);
  streams_[1]->close();
  connection_->send(request(1, {2'000'000}));
  loop_->run();
  EXPECT_TRUE(closed());
}

TEST_F(StripedStreamTest, FramesThatArrivedBeforeTheEndAreDelivered) {
  connect_striped(3, 16 << 20);
  const auto last = striped(bytes_of(request(1, {2'000'000})), 3);
  for (const std::size_t i : {2, 1, 0}) {  // the last blocks first, each followed by the end
    EXPECT_EQ(write(*streams_[i], last[i]), "");
    streams_[i]->close();
    loop_->run();
  }
  EXPECT_EQ(frames().size(), 1U);
  ASSERT_TRUE(closed());
  EXPECT_EQ(closed()->kind(), ErrorKind::peer_lost);
}

}  // namespace
}  // namespace weft::rpc::striped_stream_test
