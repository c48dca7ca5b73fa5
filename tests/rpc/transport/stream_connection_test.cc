// The order in which frames leave a StreamConnection, over a stream that accepts as many bytes as the test
// permits: frames that are sent ahead overtake queued frames, and queued frames leave before a refusal.
// connection_test.cc tests the behaviour of all connections.
#include <weft/rpc/transport/stream_connection.h>

#include <weft/rpc/transport/admission.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/byte_stream_pair.h"
#include "tests/support/messages.h"

namespace weft::rpc::stream_connection_test {
namespace {

using namespace test;

OutboundFrame request(std::uint64_t id, std::size_t bytes = 0) {
  auto message = OutgoingMessage::request(0);
  if (bytes != 0) message->attach(Buffer::allocate(bytes));
  return message->seal_request({1, 1, 0}, id, 0);
}
OutboundFrame beat(std::uint64_t id) { return OutgoingMessage::plain(FrameKind::pong, id); }

class Reader : public ConnectionObserver {
 public:
  void on_frame(InboundFrame&& frame) override {
    const bool is_beat = frame.prefix.kind == FrameKind::pong;
    order.push_back((is_beat ? "beat " : "") + std::to_string(frame.prefix.call_id));
    (is_beat ? beats : requests).push_back(frame.prefix.call_id);
    if (react && !is_beat) react(frame.prefix.call_id);
  }
  void on_closed(const Error&) override { closed = true; }

  std::function<void(std::uint64_t)> react;
  std::vector<std::string> order;
  std::vector<std::uint64_t> requests, beats;
  bool closed = false;
};

// Two connections. `here` is started at construction, `there` by read().
struct Ends {
  explicit Ends(const test::PairOptions& options) {
    auto streams = PairedStream::make(loop, options);
    here = make_stream_connection(std::move(streams.first), loop, Limits{});
    there = make_stream_connection(std::move(streams.second), loop, Limits{});
    here->start(first);
    loop->run();
  }
  ~Ends() {
    here->close(Error(ErrorKind::shut_down, "test over"));
    there->close(Error(ErrorKind::shut_down, "test over"));
    loop->run();
  }
  void read() {
    there->start(second);
    loop->run();
  }

  std::shared_ptr<ManualLoop> loop = std::make_shared<ManualLoop>();
  std::shared_ptr<Reader> first = std::make_shared<Reader>(), second = std::make_shared<Reader>();
  std::shared_ptr<Connection> here, there;
};

TEST(SendAhead, OvertakesAllQueuedFramesExceptAPartlySentOne) {
  Ends ends({.capacity = 100'000});
  for (std::uint64_t i = 0; i < 200; ++i) ends.here->send(request(i, 100'000));
  ends.loop->run();
  ends.here->send_ahead(beat(1));
  ends.here->send_ahead(beat(2));
  ends.loop->run();
  ends.read();
  ASSERT_EQ(ends.second->order.size(), 202U);
  EXPECT_EQ(ends.second->order[0], "0");
  EXPECT_EQ(ends.second->order[1], "beat 1");
  EXPECT_EQ(ends.second->order[2], "beat 2");
  EXPECT_EQ(ends.second->order[3], "1");
  EXPECT_EQ(ends.second->order.back(), "199");
}

TEST(SendAhead, OvertakesTheUnsentPartOfABatch) {
  const std::size_t size = request(0).head.size();
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, size - 1}) {
    Ends ends({.capacity = 10 * size + part});
    for (std::uint64_t i = 0; i < 1000; ++i) ends.here->send(request(i));
    ends.loop->run();
    ends.here->send_ahead(beat(1));
    ends.loop->run();
    ends.read();
    ASSERT_EQ(ends.second->order.size(), 1001U);
    EXPECT_EQ(ends.second->order[part == 0 ? 10 : 11], "beat 1") << part << " bytes of the frame before it";
  }
}

TEST(SendAhead, IsFirstIfNoByteWasSent) {
  Ends ends({});
  for (std::uint64_t i = 0; i < 10; ++i) ends.here->send(request(i));
  ends.here->send_ahead(beat(1));
  ends.read();
  ASSERT_EQ(ends.second->order.size(), 11U);
  EXPECT_EQ(ends.second->order[0], "beat 1");
}

// send_ahead() may be called from any callback, and the stream may split the bytes anywhere.
TEST(SendAhead, LosesAndReordersNoOtherFrame) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Ends ends({.capacity = 3000, .max_a_call = 2000, .would_block_one_in = 4, .seed = seed});
    std::vector<std::uint64_t> ids;
    ends.second->react = [&](std::uint64_t id) { ends.there->send_ahead(beat(id)); };
    for (std::uint64_t i = 0; i < 200; ++i) {
      ids.push_back(i);
      OutboundFrame frame = request(i, i % 7 * (i % 11) * 100);
      frame.sent = [here = ends.here.get(), i] {
        here->send_ahead(beat(i));
        if (i % 3 == 0) here->send_ahead(beat(1000 + i));
      };
      ends.here->send(std::move(frame));
    }
    ends.read();
    EXPECT_EQ(ends.second->requests, ids) << seed;
    EXPECT_EQ(ends.second->beats.size(), 200U + 67) << seed;
    std::sort(ends.first->beats.begin(), ends.first->beats.end());  // they overtake each other, too
    EXPECT_EQ(ends.first->beats, ids) << seed << ": what is sent while frames are delivered";
    EXPECT_FALSE(ends.first->closed || ends.second->closed);
  }
}

TEST(SendAhead, IsSentBeforeAFinishingConnectionCloses) {
  Ends ends({.capacity = 1000});
  for (std::uint64_t i = 0; i < 10; ++i) ends.here->send(request(i, 1000));
  ends.loop->run();
  ends.here->send_ahead(beat(1));
  ends.here->finish(Error(ErrorKind::shut_down, "that was all"));
  ends.here->send_ahead(beat(2));  // too late
  ends.read();
  EXPECT_EQ(ends.second->requests.size(), 10U);
  EXPECT_EQ(ends.second->beats, std::vector<std::uint64_t>{1});
  EXPECT_TRUE(ends.second->closed);
}

TEST(SendAhead, IsReleasedIfTheConnectionCloses) {
  Ends ends({.capacity = 1000});
  auto kept = std::make_shared<int>(1);
  ends.here->send(request(1, 10'000));
  ends.loop->run();
  OutboundFrame frame = beat(1);
  frame.sent = [kept] {};
  ends.here->send_ahead(std::move(frame));
  ends.here->close(Error(ErrorKind::cancelled, "enough"));
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(SendAhead, IsNotForFramesWithAttachments) {
  Ends ends({.capacity = 1000});
  for (std::uint64_t i = 0; i < 10; ++i) ends.here->send(request(i, 1000));
  ends.here->send_ahead(request(10, 1000));
  ends.read();
  EXPECT_EQ(ends.second->order.back(), "10") << "it goes as any other";
}

// --- Reading and writing ---

TEST(StreamConnectionTest, WritesQueuedFramesBeforeItRefusesAFrame) {
  const auto loop = std::make_shared<ManualLoop>();
  auto streams = PairedStream::make(loop, test::PairOptions{});
  ConnectionOptions options{Limits{}};
  options.admission = std::make_shared<Admission>(1 << 20);
  const auto connection = make_stream_connection(std::move(streams.first), loop, options);
  const auto observer = std::make_shared<Reader>();
  std::error_code error;
  const std::array tls_record{std::byte{22}, std::byte{3}, std::byte{1}, std::byte{0}, std::byte{1}};
  const std::array<std::span<const std::byte>, 1> record{tls_record};
  ASSERT_EQ(streams.second->write(record, error), tls_record.size());

  connection->start(observer);  // the read is due before the write
  connection->send(OutgoingMessage::hello({1, 1, 0, "plain", 7, {}}));
  loop->run();
  EXPECT_TRUE(observer->closed);
  std::array<std::byte, 4> begin{};
  const std::array<std::span<std::byte>, 1> into{begin};
  ASSERT_EQ(streams.second->read(into, error), begin.size()) << error.message();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(begin.data()), begin.size()), "WEFT");
}

// --- Room for large requests ---

TEST(AdmissionTest, KeepsAnEighthForSmallFrames) {
  const auto admission = std::make_shared<Admission>(800'000);
  auto first = admission->admit(500'000);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(admission->admit(200'001), nullptr);
  const auto second = admission->admit(200'000);
  ASSERT_NE(second, nullptr);
  const auto small = admission->admit(Admission::large - 1);
  ASSERT_NE(small, nullptr);
  EXPECT_NE(admission->admit(Admission::large - 1), nullptr) << "the last small frame may exceed the total";
  EXPECT_EQ(admission->admit(Admission::large), nullptr);
  first = nullptr;
  EXPECT_NE(admission->admit(400'000), nullptr);
}

class Holder : public ConnectionObserver {
 public:
  void on_frame(InboundFrame&& frame) override {
    order.push_back((frame.header.empty() ? "no " : "") + std::to_string(frame.prefix.call_id));
    if (frame.header.empty()) return;
    if (frame.prefix.carries_call()) held.push_back(std::move(frame));
  }
  bool awaits(const Prefix& reply) override { return reply.call_id == awaited; }
  void on_closed(const Error& reason) override { order.push_back(std::string("closed: ") + reason.what()); }

  std::vector<std::string> order;
  std::vector<InboundFrame> held;
  std::uint64_t awaited = 0;
};

using Order = std::vector<std::string>;

// Connections to one agent with a limit of one MiB.
class RoomTest : public testing::Test {
 protected:
  struct Ends {
    std::shared_ptr<Holder> here = std::make_shared<Holder>(), there = std::make_shared<Holder>();
    std::shared_ptr<Connection> from, to;
  };
  Ends connect() {
    Ends ends;
    auto streams = PairedStream::make(loop, test::PairOptions{});
    ConnectionOptions options{Limits{}};
    ends.from = make_stream_connection(std::move(streams.first), loop, options);
    options.admission = admission;
    ends.to = make_stream_connection(std::move(streams.second), loop, options);
    ends.from->start(ends.here);
    ends.to->start(ends.there);
    ends.from->send(OutgoingMessage::hello({1, 1, 0, "peer", 7, {}}));
    loop->run();
    EXPECT_EQ(std::exchange(ends.there->order, {}), Order{"0"});
    all.push_back(ends);
    return ends;
  }
  ~RoomTest() override {
    for (Ends& ends : all) {
      ends.there->held.clear();
      ends.from->close(Error(ErrorKind::shut_down, "test over"));
      ends.to->close(Error(ErrorKind::shut_down, "test over"));
    }
    loop->run();
    all.clear();
    EXPECT_EQ(admission->bytes(), 0U);
  }
  static OutboundFrame reply(std::uint64_t id, std::size_t bytes) {
    auto message = OutgoingMessage::reply();
    message->result().set_nil();
    message->attach(Buffer::allocate(bytes));
    return message->seal_reply(id);
  }

  std::shared_ptr<ManualLoop> loop = std::make_shared<ManualLoop>();
  std::shared_ptr<Admission> admission = std::make_shared<Admission>(1 << 20);
  std::vector<Ends> all;
};

TEST_F(RoomTest, IsChargedWhenTheSizeIsAnnounced) {
  auto a = connect();
  const auto bytes = test::bytes_of(request(1, 800'000));
  OutboundFrame only_prefix;
  only_prefix.head = Buffer::copy(std::span(bytes).first(Prefix::size));
  a.from->send(std::move(only_prefix));
  loop->run();
  EXPECT_GE(admission->bytes(), 800'000U);
  EXPECT_EQ(a.there->order, Order{});
}

TEST_F(RoomTest, OtherConnectionsWaitForItWithoutReading) {
  auto a = connect(), b = connect(), c = connect();
  a.from->send(request(1, 800'000));
  loop->run();
  for (auto* ends : {&b, &c}) {
    ends->from->send(request(2, 500'000));
    ends->from->send(beat(3));
  }
  loop->run();
  EXPECT_EQ(a.there->order, Order{"1"});
  EXPECT_EQ(b.there->order, Order{});
  a.there->held.clear();
  loop->run();
  EXPECT_EQ(b.there->order, (Order{"2", "3"}));
  EXPECT_EQ(c.there->order, Order{}) << "it came later";
  b.there->held.clear();
  loop->run();
  EXPECT_EQ(c.there->order, (Order{"2", "3"}));
  loop->advance(std::chrono::seconds{2});
  loop->run();
  EXPECT_EQ(c.there->order.size(), 2U);
}

TEST_F(RoomTest, ThatIsNotFreeInTimeRefusesOnlyThatRequest) {
  auto a = connect(), b = connect();
  a.from->send(request(1, 800'000));
  loop->run();
  b.from->send(request(2, 500'000));
  b.from->send(request(3, 600'000));
  b.from->send(reply(9, 100'000));
  loop->run();
  loop->advance(admission->timeout() / 2);
  loop->run();
  EXPECT_EQ(b.there->order, Order{});
  loop->advance(admission->timeout() / 2);
  loop->run();
  EXPECT_EQ(b.there->order, Order{"no 2"}) << "the next one waits separately";
  b.there->awaited = 9;
  loop->advance(admission->timeout());
  loop->run();
  EXPECT_EQ(b.there->order, (Order{"no 2", "no 3", "9"}));
}

TEST_F(RoomTest, IsNeverAwaitedByReplies) {
  auto a = connect(), b = connect();
  a.from->send(request(1, 2'000'000));  // a single request may exceed the limit
  loop->run();
  EXPECT_EQ(a.there->order, Order{"1"});
  b.there->awaited = 5;
  b.from->send(reply(4, 300'000));  // replies are not awaited
  b.from->send(reply(5, 300'000));
  b.from->send(request(6));  // small
  loop->run();
  EXPECT_EQ(b.there->order, (Order{"no 4", "5", "6"}));
}

TEST_F(RoomTest, IsNotTakenByAClosedConnection) {
  auto a = connect(), b = connect(), c = connect(), other = connect();
  other.from->send(request(1, 100'000));  // held until the end, so that b and c never fit at the same time
  a.from->send(request(1, 700'000));
  loop->run();
  b.from->send(request(2, 500'000));
  c.from->send(request(3, 500'000));
  loop->run();
  b.to->close(Error(ErrorKind::aborted, "closed while it waits"));
  loop->run();
  EXPECT_EQ(b.there->order, Order{"closed: closed while it waits"});
  a.there->held.clear();
  loop->run();
  EXPECT_EQ(c.there->order, Order{"3"});
}

TEST_F(RoomTest, AWaitForItDoesNotPreventFinish) {
  auto a = connect(), b = connect();
  a.from->send(request(1, 800'000));
  loop->run();
  b.from->send(request(2, 500'000));
  loop->run();
  b.to->finish(Error(ErrorKind::shut_down, "finished"));
  b.from->finish(Error(ErrorKind::shut_down, "finished"));
  loop->run();
  EXPECT_EQ(b.there->order, Order{"closed: finished"});
}

}  // namespace
}  // namespace weft::rpc::stream_connection_test
