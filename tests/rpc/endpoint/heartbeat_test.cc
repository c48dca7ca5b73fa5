// A silent peer is lost. A busy peer is not.
#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::heartbeat_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using probe::Socket;

int one() { return 1; }
using One = Function<"one", &one>;

AgentOptions impatient(const std::string& name) {
  AgentOptions options;
  options.name = name;
  options.listen = {"tcp://127.0.0.1:0"};
  options.heartbeat = {.interval = 20ms, .timeout = 100ms};
  options.log = [](const LogRecord&) {};
  return options;
}

void greet(Socket& socket) {
  const OutboundFrame frame = OutgoingMessage::hello({.name = "mute", .incarnation = 7});
  ASSERT_TRUE(socket.send(frame.head.bytes()));
  ASSERT_EQ(socket.next()->prefix.kind, FrameKind::hello);
}

TEST(HeartbeatTest, ASilentPeerIsLost) {
  Agent agent(impatient("a"));
  Socket listener = Socket::listening();
  auto call = agent.connect(listener.address()).call<One>();
  Socket mute = listener.accept();
  greet(mute);
  EXPECT_EQ(mute.next()->prefix.kind, FrameKind::request);
  expect_error([&] { got(std::move(call)); }, ErrorKind::peer_lost, Execution::maybe_executed,
               "nothing was received from mute");
  EXPECT_EQ(agent.counts().peers_silent, 1U);
  std::size_t pings = 0;
  while (const auto frame = mute.next()) pings += frame->prefix.kind == FrameKind::ping ? 1 : 0;
  EXPECT_GE(pings, 1U) << "it was asked";
}

TEST(HeartbeatTest, APeerThatAnswersOnlyPingsIsAlive) {
  auto options = impatient("a");
  options.heartbeat = {.interval = 10ms, .timeout = 1s};  // the test itself may send a pong late
  Agent agent(std::move(options));
  Socket listener = Socket::listening();
  auto call = agent.connect(listener.address()).call<One>();
  Socket busy = listener.accept();
  greet(busy);
  EXPECT_EQ(busy.next()->prefix.kind, FrameKind::request);
  for (int i = 0; i < 200; ++i) {  // twice the timeout
    const auto frame = busy.next();
    ASSERT_TRUE(frame);
    ASSERT_EQ(frame->prefix.kind, FrameKind::ping);
    ASSERT_TRUE(busy.send(OutgoingMessage::plain(FrameKind::pong, frame->prefix.call_id).head.bytes()));
  }
  EXPECT_FALSE(call.ready());
  EXPECT_EQ(agent.counts().peers_silent, 0U);
}

TEST(HeartbeatTest, WithoutHeartbeatsASilentPeerIsNotLost) {
  auto options = impatient("a");
  options.heartbeat.interval = 0ns;
  Agent agent(std::move(options));
  Socket listener = Socket::listening();
  auto call = agent.connect(listener.address()).call<One>();
  Socket mute = listener.accept();
  greet(mute);
  EXPECT_EQ(mute.next()->prefix.kind, FrameKind::request);
  agent.shut_down();
  while (const auto frame = mute.next()) EXPECT_NE(frame->prefix.kind, FrameKind::ping);
  EXPECT_TRUE(test::error_of([&] { got(std::move(call)); }));
}

}  // namespace
}  // namespace weft::rpc::heartbeat_test
