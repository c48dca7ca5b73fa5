// Lanes of a connection whose peer is hand-written: which bytes use which lane, and how connection and lanes
// close.
#include <weft/rpc/transport/lanes.h>

#include <weft/rpc/transport/stream_connection.h>

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/byte_stream_pair.h"
#include "tests/support/messages.h"

namespace weft::rpc::lanes_test {
namespace {

using namespace std::chrono_literals;
using test::PairedStream;

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

// The bytes of a frame on the stream and on n lanes, as docs/internals/wire_protocol.md defines them.
struct Travelling {
  explicit Travelling(const OutboundFrame& frame, std::size_t n) : lanes(n) {
    Buffer head = Buffer::copy(frame.head.bytes());
    add_flag(head.bytes(), 2);
    stream = text(head.bytes());
    for (const Buffer& attachment : frame.attachments) {
      const std::string bytes = text(attachment.bytes());
      if (bytes.size() < 1'048'576) {
        stream += bytes + std::string((64 - bytes.size() % 64) % 64, '\0');
        continue;
      }
      std::size_t each = (bytes.size() + n - 1) / n;
      each += (64 - each % 64) % 64;
      for (std::size_t i = 0; i < n; ++i) lanes[i] += bytes.substr(std::min(i * each, bytes.size()), each);
    }
  }
  std::string stream;
  std::vector<std::string> lanes;
};

// One end of a connection with lanes: the connection itself, or streams alone.
struct Ended : ConnectionObserver {
  void on_frame(InboundFrame&& frame) override {
    if (react) react(frame);
    frames.push_back(std::move(frame));
  }
  void on_closed(const Error& reason) override { closed = reason; }

  std::function<void(const InboundFrame&)> react;
  std::vector<InboundFrame> frames;
  std::optional<Error> closed;
};

class LanesTest : public testing::Test {
 protected:
  ~LanesTest() override {
    stream_ = nullptr;
    lanes_.clear();
    loop_->run();
  }
  // capacity: of each stream's each direction.
  void connect(std::size_t lanes, std::size_t capacity, bool in_use = true) {
    auto [first, second] = PairedStream::make(loop_, {.capacity = capacity});
    connection_ = std::make_shared<StreamConnection>(std::move(first), loop_, ConnectionOptions{});
    stream_ = std::move(second);
    std::vector<Lanes::Stream> ours;
    for (std::size_t i = 0; i < lanes; ++i) {
      auto lane = PairedStream::make(loop_, {.capacity = capacity});
      ours.emplace_back(lane.first.release(), Lanes::CloseOnLoop{loop_});
      lanes_.push_back(std::move(lane.second));
    }
    connection_->start(observer_);
    connection_->set_lanes(std::make_unique<Lanes>(loop_, std::move(ours)));
    if (in_use) connection_->use_lanes();
    loop_->run();
  }
  // Reads the available bytes, at most `most`.
  static std::string read(PairedStream& stream, std::size_t most = SIZE_MAX) {
    std::string all;
    std::error_code error;
    while (!error && all.size() < most) {
      std::byte bytes[60'000];
      const std::span<std::byte> into[] = {std::span(bytes).first(std::min(sizeof bytes, most - all.size()))};
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
  void write(PairedStream& stream, std::string_view bytes) {
    while (!bytes.empty()) {
      const std::span<const std::byte> from[] = {std::as_bytes(std::span(bytes))};
      std::error_code error;
      const std::size_t n = stream.write(from, error);
      if (n == 0 && loop_->run() == 0) throw std::runtime_error("nobody reads");
      bytes.remove_prefix(n);
    }
  }
  void write_all(const Travelling& frame) {
    write(*stream_, frame.stream);
    for (std::size_t i = 0; i < lanes_.size(); ++i) write(*lanes_[i], frame.lanes[i]);
    loop_->run();
  }
  void finish() { connection_->finish(Error(ErrorKind::shut_down, "that was all")); }
  const std::vector<InboundFrame>& frames() const { return observer_->frames; }
  const std::optional<Error>& closed() const { return observer_->closed; }

  std::shared_ptr<test::ManualLoop> loop_ = std::make_shared<test::ManualLoop>();
  std::shared_ptr<Ended> observer_ = std::make_shared<Ended>();
  std::shared_ptr<StreamConnection> connection_;
  std::unique_ptr<PairedStream> stream_;
  std::vector<std::unique_ptr<PairedStream>> lanes_;
};

const std::vector<std::size_t> all_sizes{100, 5'000'001, 1'048'576, 1'048'575, 0, 1'048'705};

// --- What is sent over which lane ---

TEST_F(LanesTest, CarryTheLargeAttachmentsInSlices) {
  connect(3, 16 << 20);
  const OutboundFrame frame = request(1, all_sizes);
  const Travelling expected(frame, 3);
  EXPECT_EQ(expected.lanes[0].size(), 1'666'688U + 349'568 + 349'632);
  EXPECT_EQ(expected.lanes[2].size(), 1'666'625U + 349'440 + 349'441);
  connection_->send(request(1, all_sizes));
  loop_->run();
  EXPECT_TRUE(read(*stream_) == expected.stream);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(read(*lanes_[i]) == expected.lanes[i]) << i;
}

TEST_F(LanesTest, MayDeliverTheirPartBeforeOrAfterTheStream) {
  connect(3, 16 << 20);
  for (const bool lanes_first : {true, false}) {
    const OutboundFrame frame = request(1, all_sizes);
    const Travelling sent(frame, 3);
    if (!lanes_first) write(*stream_, sent.stream);
    loop_->run();
    for (std::size_t i = 0; i < 3; ++i) {
      write(*lanes_[i], sent.lanes[i]);
      loop_->run();
    }
    if (lanes_first) write(*stream_, sent.stream);
    loop_->run();
    ASSERT_FALSE(frames().empty());
    const auto got = test::attachments_of(frames().back());
    ASSERT_EQ(got.size(), all_sizes.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(text(got[i].bytes()) == text(frame.attachments[i].bytes())) << all_sizes[i];
  }
  EXPECT_EQ(frames().size(), 2U);
}

// --- Reading ---

TEST_F(LanesTest, RepliesDoNotWaitForTheNextFrame) {
  connect(2, 16 << 20);
  observer_->react = [this](const InboundFrame& got) {
    connection_->send(request(got.prefix.call_id + 100));
  };
  const Travelling first(request(1, {2'000'000}), 2), second(request(2, {2'000'000}), 2);
  write(*stream_, first.stream + second.stream);
  for (std::size_t i = 0; i < 2; ++i) write(*lanes_[i], first.lanes[i]);
  loop_->run();
  ASSERT_EQ(frames().size(), 1U);
  EXPECT_TRUE(read(*stream_) == text(request(101).head.bytes()));
}

// --- The end ---

TEST_F(LanesTest, AFinishedConnectionLivesUntilAllBytesAreSent) {
  connect(2, 64 << 10);
  const Travelling sent(request(7, {4'000'000}), 2);
  connection_->send(request(7, {4'000'000}));
  write(*stream_, Travelling(request(1, {2'000'000}), 2).stream);  // the part on the lanes never arrives
  loop_->run();
  finish();
  connection_.reset();
  std::string stream;
  std::vector<std::string> lanes(2);
  for (int i = 0; i < 100; ++i) {
    loop_->run();
    stream += read(*stream_);
    for (std::size_t lane = 0; lane < 2; ++lane) lanes[lane] += read(*lanes_[lane]);
  }
  EXPECT_TRUE(stream == sent.stream);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(lanes[i] == sent.lanes[i]) << i;
  EXPECT_TRUE(has_ended(*stream_));
  EXPECT_FALSE(closed());
  stream_->close();
  loop_->run();
  ASSERT_TRUE(closed());
  EXPECT_STREQ(closed()->what(), "that was all");
  EXPECT_TRUE(has_ended(*lanes_[0]));
}

TEST_F(LanesTest, AFinishedConnectionWaitsWhileLanesProgress) {
  connect(1, 64 << 10);
  const Travelling sent(request(7, {4'000'000}), 1);
  connection_->send(request(7, {4'000'000}));
  finish();
  loop_->run();
  std::string got;
  while (got.size() < sent.lanes[0].size() && !closed()) {
    got += read(*lanes_[0], 500'000);
    loop_->run();
    loop_->advance(1500ms);
    loop_->run();
  }
  EXPECT_TRUE(got == sent.lanes[0]);
  // It does not wait for a peer that reads nothing.
  loop_->advance(2s);
  loop_->run();
  loop_->advance(2s);
  loop_->run();
  EXPECT_TRUE(closed());
}

TEST_F(LanesTest, BothEndsMayFinishWithFramesOnThem) {
  auto [first, second] = PairedStream::make(loop_, {.capacity = 64 << 10});
  std::vector<Lanes::Stream> ours, theirs;
  for (int i = 0; i < 2; ++i) {
    auto lane = PairedStream::make(loop_, {.capacity = 64 << 10});
    ours.emplace_back(lane.first.release(), Lanes::CloseOnLoop{loop_});
    theirs.emplace_back(lane.second.release(), Lanes::CloseOnLoop{loop_});
  }
  std::vector<std::shared_ptr<Ended>> ends;
  const auto start = [&](std::unique_ptr<PairedStream> stream, std::vector<Lanes::Stream> lanes) {
    auto connection = std::make_shared<StreamConnection>(std::move(stream), loop_, ConnectionOptions{});
    connection->start(ends.emplace_back(std::make_shared<Ended>()));
    connection->set_lanes(std::make_unique<Lanes>(loop_, std::move(lanes)));
    connection->use_lanes();
    connection->send(request(1, {4'000'000}));
    return connection;
  };
  const auto here = start(std::move(first), std::move(ours)),
             there = start(std::move(second), std::move(theirs));
  for (const auto& connection : {here, there})
    connection->finish(Error(ErrorKind::shut_down, "that was all"));
  loop_->run();  // without waiting
  for (const auto& end : ends) EXPECT_TRUE(end->closed);
}

// --- Lost lanes ---

TEST_F(LanesTest, ALostIdleLaneClosesTheConnection) {
  connect(2, 1 << 20);
  lanes_[1]->close();
  loop_->run();
  ASSERT_TRUE(closed());
  EXPECT_EQ(closed()->kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(closed()->what(), "a lane of the connection was lost: memory: the other side closed it");
  EXPECT_TRUE(has_ended(*lanes_[0]));
  EXPECT_TRUE(has_ended(*stream_));
}

TEST_F(LanesTest, FramesThatArrivedBeforeTheEndAreDelivered) {
  connect(2, 16 << 20);
  const Travelling last(request(1, {2'000'000}), 2);
  write(*lanes_[0], last.lanes[0]);
  write(*stream_, last.stream + text(request(2).head.bytes()));
  lanes_[0]->close();  // its part has been received
  loop_->run();
  write(*lanes_[1], last.lanes[1]);
  lanes_[1]->close();
  stream_->close();
  loop_->run();
  EXPECT_EQ(frames().size(), 2U);
  ASSERT_TRUE(closed());
  EXPECT_EQ(closed()->kind(), ErrorKind::peer_lost);
}

TEST_F(LanesTest, FramesOnTheStreamAreDeliveredWhenALaneIsLost) {
  connect(2, 1 << 20);
  lanes_[0]->close();
  ASSERT_TRUE(loop_->step());  // the lane has noticed, the connection has not
  write(*stream_, text(request(2).head.bytes()));
  loop_->run();
  EXPECT_EQ(frames().size(), 1U);
  EXPECT_TRUE(closed());
}

TEST_F(LanesTest, ALaneLostWithinAFrameClosesTheConnection) {
  connect(2, 1 << 20);
  const Travelling frame(request(1, {2'000'000}), 2);
  write(*stream_, frame.stream);
  write(*lanes_[0], frame.lanes[0].substr(0, 1000));
  loop_->run();
  lanes_[0]->close();
  loop_->run();
  EXPECT_TRUE(closed());
}

TEST_F(LanesTest, ALaneLostBeforeTheFirstUseClosesOnlyTheLanes) {
  connect(2, 1 << 20, false);
  lanes_[1]->close();
  loop_->run();
  EXPECT_FALSE(closed());
  EXPECT_TRUE(has_ended(*lanes_[0]));
  connection_->send(request(1));
  write(*stream_, text(request(2).head.bytes()));
  loop_->run();
  EXPECT_EQ(frames().size(), 1U);
  EXPECT_TRUE(read(*stream_) == text(request(1).head.bytes()));
  connection_->use_lanes();
  loop_->run();
  EXPECT_TRUE(closed());
}

TEST_F(LanesTest, AFrameOnLanesThatWereLostClosesTheConnection) {
  connect(2, 1 << 20, false);
  lanes_[1]->close();
  loop_->run();
  write(*stream_, Travelling(request(1, {2'000'000}), 2).stream);
  loop_->run();
  EXPECT_TRUE(closed());
  EXPECT_TRUE(frames().empty());
}

}  // namespace
}  // namespace weft::rpc::lanes_test
