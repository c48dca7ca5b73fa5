// Lanes between agents: how they are opened, which attachments they carry, and how failures are handled.
#include <weft/rpc/rpc.h>
#include <weft/rpc/transport/lanes.h>

#include <asio/io_context.hpp>

#include <future>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/raw_peer.h"
#include "tests/support/tls_socket.h"

namespace weft::rpc::link_lanes_test {
namespace {

using probe::Bytes;
using test::error_of;
using test::eventually;
using test::got;
using test::kind_of;

struct Mirror {
  Buffer back(Buffer bytes) { return bytes; }
  std::uint64_t size(Buffer bytes) { return bytes.size(); }
  using Service = rpc::Service<"mirror", Method<"back", &Mirror::back>, Method<"size", &Mirror::size>>;
};

Buffer filled(std::size_t size, unsigned seed) {
  Buffer buffer = Buffer::allocate(size);
  for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = std::byte(i * 31 + i / 4096 + seed);
  return buffer;
}
bool same(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class LinkLanesTest : public testing::Test {
 protected:
  Agent& add(const std::string& name, std::size_t lanes,
             std::shared_ptr<const Credentials> credentials = nullptr) {
    AgentOptions options{.name = name,
                         .listen = {"tcp://127.0.0.1:0"},
                         .credentials = std::move(credentials),
                         .loops = 2,
                         .lanes = lanes,
                         .same_host = false,
                         .log = [](const LogRecord&) {}};
    auto& agent = agents_.emplace_back(std::make_unique<Agent>(std::move(options)));
    agent->serve(std::make_shared<Mirror>());
    return *agent;
  }
  static Peer connect(Agent& from, Agent& to) {
    Peer peer = from.connect(to.addresses().front());
    got(peer.ready());
    return peer;
  }
  static void expect_mirrored(const Peer& peer) {
    for (const std::size_t size : {std::size_t{100}, Lanes::least_bytes - 1, Lanes::least_bytes,
                                   Lanes::least_bytes + 1, std::size_t{9'000'001}}) {
      const Buffer sent = filled(size, static_cast<unsigned>(size));
      EXPECT_TRUE(same(got(peer.call<&Mirror::back>(sent)), sent)) << size;
    }
  }
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(LinkLanesTest, AreLimitedByBothSides) {
  Agent &anna = add("anna", 3), &bert = add("bert", 2);
  const Peer peer = connect(anna, bert);
  eventually("both have their lanes",
             [&] { return anna.counts().lanes_made == 2 && bert.counts().lanes_made == 2; });
  expect_mirrored(peer);
  EXPECT_EQ(anna.counts().connections, 1U);
  EXPECT_EQ(bert.counts().connections, 1U);  // those that became lanes do not count
}

TEST_F(LinkLanesTest, AreNotOpenedIfOneSideHasNone) {
  Agent &anna = add("anna", 3), &bert = add("bert", 0);
  expect_mirrored(connect(anna, bert));
  expect_mirrored(connect(bert, anna));
  EXPECT_EQ(anna.counts().lanes_made, 0U);
  EXPECT_EQ(bert.counts().lanes_made, 0U);
}

TEST_F(LinkLanesTest, CarryManyCallsAtOnce) {
  Agent &anna = add("anna", 2), &bert = add("bert", 2);
  const Peer peer = connect(anna, bert);
  // Calls start at once, so they run before, while and after the lanes are opened.
  std::vector<Buffer> sent;
  std::vector<Future<Buffer>> answers;
  for (unsigned i = 0; i < 40; ++i) {
    sent.push_back(filled(i % 3 == 0 ? 1000 : 1'500'000 + i, i));
    answers.push_back(peer.call<&Mirror::back>(sent.back()));
  }
  for (unsigned i = 0; i < 40; ++i) EXPECT_TRUE(same(got(std::move(answers[i])), sent[i])) << i;
}

TEST_F(LinkLanesTest, AreSecuredLikeTheConnection) {
  const test::TestAuthority authority;
  Agent &anna = add("anna", 2, std::make_shared<Credentials>(authority.credentials("anna"))),
        &bert = add("bert", 2, std::make_shared<Credentials>(authority.credentials("bert")));
  const Peer peer = connect(anna, bert);
  eventually("both have their lanes",
             [&] { return anna.counts().lanes_made == 2 && bert.counts().lanes_made == 2; });
  expect_mirrored(peer);
}

TEST_F(LinkLanesTest, EndWithTheirConnection) {
  Agent &anna = add("anna", 2), &bert = add("bert", 2);
  const Peer peer = connect(anna, bert);
  eventually("both have their lanes", [&] { return bert.counts().lanes_made == 2; });
  auto call = peer.call<&Mirror::size>(filled(64 << 20, 1));
  agents_.pop_back();  // destroys bert during the call or after it
  const auto error = error_of([&] { return call.get(); });
  if (error) {
    EXPECT_TRUE(error->kind() == ErrorKind::peer_lost || error->kind() == ErrorKind::shut_down)
        << error->what();
  }
}

TEST_F(LinkLanesTest, WithoutAConnectionAreRefused) {
  Agent& anna = add("anna", 2);
  auto stranger = probe::Socket::connected(anna.addresses().front());
  stranger.send(test::bytes_of(OutgoingMessage::lane({{1, 2}, 0, 2})));
  EXPECT_EQ(stranger.frames_to_end(), 1U);  // anna's hello
  EXPECT_EQ(anna.counts().lanes_made, 0U);
}

// A peer that knows the key of its connection.
struct ByHand {
  explicit ByHand(Agent& agent, bool greets = true)
      : address(agent.addresses().front()), connection(probe::Socket::connected(address)) {
    if (greets) greet();
    theirs = IncomingMessage(*connection.next(), Limits{}).hello();
  }
  void greet() {
    const HelloInfo hello{.name = "by-hand", .incarnation = 5, .lanes = 4};
    connection.send(test::bytes_of(OutgoingMessage::hello(hello)));
  }
  probe::Socket lane(std::uint16_t index, std::uint16_t count) const {
    auto socket = probe::Socket::connected(address);
    socket.send(test::bytes_of(OutgoingMessage::lane({theirs.lane_key, index, count})));
    return socket;
  }
  std::string address;
  probe::Socket connection;
  HelloInfo theirs;
};

TEST_F(LinkLanesTest, AreOpenOnceAllHaveArrived) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  EXPECT_EQ(peer.theirs.lanes, 2U);
  const auto second = peer.lane(1, 2), first = peer.lane(0, 2);
  const auto said = peer.connection.next();
  ASSERT_TRUE(said && said->prefix.kind == FrameKind::lane);
  EXPECT_EQ(IncomingMessage(*said, Limits{}).lane().count, 2U);
}

TEST_F(LinkLanesTest, MayArriveBeforeTheHello) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna, false);
  auto second = peer.lane(1, 2), first = peer.lane(0, 2);
  // anna's hello; she receives this peer's at about the same time
  for (auto* lane : {&first, &second}) ASSERT_TRUE(lane->next());
  peer.greet();
  const auto said = peer.connection.next();
  ASSERT_TRUE(said && said->prefix.kind == FrameKind::lane);
  EXPECT_EQ(anna.counts().lanes_made, 2U);
}

TEST(EarlyLanesTest, AreBounded) {
  std::atomic<int> warnings{0};
  // A lane counts as a handshake until the agent has read its first frame.
  const auto is_read = [](Agent& agent) {
    eventually("only the connection itself has not said who it is",
               [&] { return agent.counts().handshakes == 1; });
  };
  AgentOptions options{.name = "anna", .listen = {"tcp://127.0.0.1:0"}, .lanes = 8, .same_host = false};
  options.max_handshakes = 4;
  options.log = [&](const LogRecord& record) { warnings += record.level >= LogLevel::warning ? 1 : 0; };
  Agent anna(std::move(options));
  ByHand peer(anna, false);
  std::vector<probe::Socket> kept;
  for (std::uint16_t i = 0; i < 4; ++i) {
    kept.push_back(peer.lane(i, 5));
    ASSERT_TRUE(kept.back().next());  // her hello
    is_read(anna);
  }
  EXPECT_EQ(peer.lane(4, 5).frames_to_end(), 1U);
  // A lane no longer counts as a handshake once its connection is known, or has ended.
  peer.connection.end_sending();
  for (auto& lane : kept) EXPECT_EQ(lane.frames_to_end(), 0U);
  for (int round = 0; round < 2; ++round) {
    ByHand other(anna, false);
    std::vector<probe::Socket> lanes;
    for (std::uint16_t i = 0; i < 4; ++i) {
      lanes.push_back(other.lane(i, 4));
      ASSERT_TRUE(lanes.back().next());
      is_read(anna);
    }
    other.greet();
    const auto said = other.connection.next();
    EXPECT_TRUE(said && said->prefix.kind == FrameKind::lane) << round;
  }
  // This happens if a connection ends while its lanes are being opened.
  auto late = peer.lane(0, 4);
  EXPECT_EQ(late.frames_to_end(), 1U);
  EXPECT_EQ(warnings, 0);
}

TEST_F(LinkLanesTest, BeyondTheOfferedNumberCloseTheConnection) {
  Agent& anna = add("anna", 2);
  for (const auto& [index, count] : {std::pair{0, 3}, {2, 2}, {0, 0}}) {
    ByHand peer(anna);
    const auto lane = peer.lane(static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(count));
    EXPECT_EQ(peer.connection.frames_to_end(), 0U) << index << " of " << count;
  }
}

TEST_F(LinkLanesTest, WithADuplicateIndexCloseTheConnection) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  const auto once = peer.lane(0, 2), twice = peer.lane(0, 2);
  EXPECT_EQ(peer.connection.frames_to_end(), 0U);
}

TEST_F(LinkLanesTest, ThatAreUsedBeforeTheyArriveCloseTheConnection) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  auto message = OutgoingMessage::request(0);
  message->attach(Buffer::allocate(Lanes::least_bytes));
  OutboundFrame frame = message->seal_request({1, 1, 0}, 1, 0);
  add_flag(frame.head.bytes(), frame_flags::on_lanes);
  peer.connection.send(frame.head.bytes());
  EXPECT_EQ(peer.connection.frames_to_end(), 0U);
}

// The lanes are idle.
TEST_F(LinkLanesTest, ThatAreLostCloseTheConnection) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  const auto first = peer.lane(0, 2);
  {
    const auto second = peer.lane(1, 2);
    ASSERT_EQ(peer.connection.next()->prefix.kind, FrameKind::lane);
    peer.connection.send(test::bytes_of(OutgoingMessage::lane({{}, 0, 2})));
  }
  EXPECT_EQ(peer.connection.frames_to_end(), 0U);
}

// The dialling side does this if it gives up on the lanes.
TEST_F(LinkLanesTest, ThatAreLostBeforeTheirFirstUseAreNotUsed) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  {
    const auto first = peer.lane(0, 2), second = peer.lane(1, 2);
    ASSERT_EQ(peer.connection.next()->prefix.kind, FrameKind::lane);
  }
  for (std::uint64_t i = 0; i < 100; ++i) {  // before and after anna detects it
    peer.connection.send(probe::plain(FrameKind::ping, i));
    const auto pong = peer.connection.next();
    ASSERT_TRUE(pong && pong->prefix.kind == FrameKind::pong) << i;
  }
}

// --- On the program's io_context, which does not run after its agent has ended ---

struct OwnContext {
  explicit OwnContext() {
    AgentOptions options{.name = "anna", .lanes = 2, .same_host = false};
    options.log = [](const LogRecord&) {};
    agent = std::make_unique<Agent>(context, std::move(options));
  }
  template <class Condition>
  void run_until(Condition condition) {
    while (!condition()) context.run_one_for(std::chrono::milliseconds{1});
  }
  asio::io_context context;
  std::unique_ptr<Agent> agent;
};

TEST_F(LinkLanesTest, CarryCallsOfTheProgramsIoContext) {
  OwnContext own;
  Agent& bert = add("bert", 2);
  const Peer peer = own.agent->connect(bert.addresses().front());
  const auto ready = peer.ready();
  own.run_until([&] { return own.agent->counts().lanes_made == 2; });
  const Buffer sent = filled(5'000'000, 1);
  std::optional<Buffer> answer;
  peer.call<&Mirror::back>(sent).then([&](Result<Buffer>&& result) { answer = std::move(result).get(); });
  own.run_until([&] { return answer.has_value(); });
  EXPECT_TRUE(same(*answer, sent));
  auto cut_off = peer.call<&Mirror::back>(sent);
  own.context.poll();
  own.agent.reset();
}

TEST_F(LinkLanesTest, ThatAreBeingDialledDoNotOutliveTheirAgentOnAnIoContext) {
  auto listener = probe::Socket::listening();
  std::optional<probe::Socket> connection, first, second;
  OwnContext own;
  const Peer peer = own.agent->connect(listener.address());
  const auto ready = peer.ready();
  const auto accept = [&] {
    auto accepted = std::async(std::launch::async, [&] { return listener.accept(); });
    own.run_until([&] { return accepted.wait_for(std::chrono::seconds{0}) == std::future_status::ready; });
    return accepted.get();
  };
  connection.emplace(accept());
  connection->send(test::bytes_of(OutgoingMessage::hello({.name = "by-hand", .incarnation = 5, .lanes = 2})));
  first.emplace(accept());
  second.emplace(accept());
  own.agent.reset();
  EXPECT_LE(first->frames_to_end(), 1U);  // the lane may belong to this agent
  EXPECT_LE(second->frames_to_end(), 1U);
}

// --- A hand-written peer that the agent dials ---

// An agent that has dialled a hand-written peer. The peer accepts, and sends the frames of the test.
class DiallingLanesTest : public testing::Test {
 protected:
  explicit DiallingLanesTest(std::chrono::nanoseconds timeout = std::chrono::seconds{10},
                             std::chrono::nanoseconds beat = {}) {
    AgentOptions options{.name = "anna", .loops = 2, .lanes = 2, .same_host = false};
    options.handshake_timeout = timeout;
    options.heartbeat = {.interval = beat, .timeout = 50 * beat};
    options.log = [](const LogRecord&) {};
    agent_ = std::make_unique<Agent>(std::move(options));
    const Peer peer = agent_->connect(listener_.address());
    ready_.emplace(peer.ready());
    connection_.emplace(listener_.accept());
    connection_->send(
        test::bytes_of(OutgoingMessage::hello({.name = "by-hand", .incarnation = 5, .lanes = 2})));
    EXPECT_EQ(connection_->next()->prefix.kind, FrameKind::hello);
    for (int i = 0; i < 2; ++i) lanes_.push_back(listener_.accept());
    for (auto& lane : lanes_) EXPECT_EQ(lane.next()->prefix.kind, FrameKind::lane);
  }
  void open_lanes() {
    greet_lanes();
    say_lane(2);
    EXPECT_TRUE(next(FrameKind::lane));
    connection_->accept_lanes();
  }
  void greet_lanes() {
    for (auto& lane : lanes_) lane.send(probe::hello("by-hand"));
  }
  void say_lane(std::uint16_t count) {
    connection_->send(test::bytes_of(OutgoingMessage::lane({{}, 0, count})));
  }
  void expect_lanes_to_end() {
    for (auto& lane : lanes_) EXPECT_EQ(lane.frames_to_end(), 0U);
  }
  void expect_alive() {
    connection_->send(probe::plain(FrameKind::ping, 1));
    EXPECT_TRUE(next(FrameKind::pong));
  }
  // Returns the agent's next frame of this kind on the connection; none once the connection is closed.
  std::optional<InboundFrame> next(FrameKind kind) {
    auto frame = connection_->next();
    while (frame && frame->prefix.kind != kind) frame = connection_->next();
    return frame;
  }

  std::unique_ptr<Agent> agent_;
  std::optional<Future<AgentId>> ready_;
  probe::Socket listener_ = probe::Socket::listening();
  std::optional<probe::Socket> connection_;
  std::vector<probe::Socket> lanes_;
};

TEST_F(DiallingLanesTest, AreUsedOnceBothSidesHaveConfirmedThem) {
  greet_lanes();
  say_lane(2);
  const auto said = next(FrameKind::lane);
  ASSERT_TRUE(said);
  EXPECT_EQ(IncomingMessage(*said, Limits{}).lane().count, 2U);
  say_lane(2);  // a repetition
  EXPECT_FALSE(next(FrameKind::lane));
}

TEST_F(DiallingLanesTest, InAnotherNumberThanDialledCloseTheConnection) {
  greet_lanes();
  say_lane(1);
  EXPECT_FALSE(next(FrameKind::lane));
}

// The listener at the address may be stopped or hostile.
TEST_F(DiallingLanesTest, ToASilentListenerCloseWithTheAgent) {
  auto ended = std::async(std::launch::async, [&] { agent_.reset(); });
  connection_.reset();
  EXPECT_EQ(ended.wait_for(test::too_long / 2), std::future_status::ready);
  lanes_.clear();  // else it would hang for ever
}

TEST_F(DiallingLanesTest, ToASilentListenerCloseWithTheConnection) {
  connection_.reset();
  expect_lanes_to_end();
}

TEST_F(DiallingLanesTest, CloseIfOneOfThemIsRefused) {
  lanes_.pop_back();
  expect_lanes_to_end();
  expect_alive();
}

// The peer sends a lane frame before its hello, when the agent does not know which peer it is.
TEST(DialledPeerTest, MustNotOpenLanesItself) {
  AgentOptions options{.name = "anna", .listen = {"tcp://127.0.0.1:0"}, .lanes = 2, .same_host = false};
  options.handshake_timeout = test::too_long;
  options.log = [](const LogRecord&) {};
  Agent anna(std::move(options));
  auto listener = probe::Socket::listening();
  const auto ready = anna.connect(listener.address()).ready();
  auto connection = listener.accept();
  const LaneKey key = IncomingMessage(*connection.next(), Limits{}).hello().lane_key;
  auto planted = probe::Socket::connected(anna.addresses().front());
  planted.send(test::bytes_of(OutgoingMessage::lane({key, 0, 2})));
  EXPECT_EQ(connection.frames_to_end(), 0U);
}

TEST_F(DiallingLanesTest, ThatAreLostDuringACallAllowItsRetry) {
  open_lanes();
  const RetryPolicy soon{.attempts = 1000, .first_wait = std::chrono::milliseconds{1}};
  const Buffer sent = filled(32 << 20, 1);
  auto call = agent_->connect(listener_.address())
                  .with({.retry = soon, .idempotent = true})
                  .call<&Mirror::size>(sent);
  ASSERT_TRUE(next(FrameKind::request));  // without its attachment, which the peer does not read
  lanes_.pop_back();
  connection_.emplace(listener_.accept());
  connection_->send(test::bytes_of(OutgoingMessage::hello({.name = "by-hand", .incarnation = 5})));
  const auto again = next(FrameKind::request);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->attachments.at(0).size(), sent.size());
  connection_->send(probe::reply(std::uint64_t{7}, again->prefix.call_id));
  EXPECT_EQ(got(std::move(call)), 7U);
}

class WatchedLanesTest : public DiallingLanesTest {
 protected:
  WatchedLanesTest() : DiallingLanesTest(std::chrono::seconds{10}, std::chrono::milliseconds{20}) {
    open_lanes();
  }
};

TEST_F(WatchedLanesTest, MayBeIdleWhileTheConnectionIsAlive) {
  const Buffer sent = Buffer::allocate(32 << 20);  // more than sockets hold
  auto call = agent_->connect(listener_.address()).call<&Mirror::size>(sent);
  for (std::uint64_t i = 0; i < 80; ++i) {
    ASSERT_TRUE(next(FrameKind::ping)) << i;
    connection_->send(probe::plain(FrameKind::pong, i));
  }
}

TEST_F(WatchedLanesTest, CountAsSignsOfLifeOfASilentConnection) {
  auto message = OutgoingMessage::request(0);
  message->attach(Buffer::allocate(Lanes::least_bytes));
  const OutboundFrame frame = message->seal_request({1, 1, 0}, 1, 0);
  add_flag(frame.head.bytes(), frame_flags::on_lanes);
  connection_->send(frame.head.bytes());
  for (int i = 0; i < 80; ++i) {
    ASSERT_TRUE(next(FrameKind::ping)) << i;
    lanes_[0].send(filled(100, 1).bytes());
  }
}

class ImpatientLanesTest : public DiallingLanesTest {
 protected:
  ImpatientLanesTest() : DiallingLanesTest(std::chrono::milliseconds{100}) {}
};

TEST_F(ImpatientLanesTest, TimeOut) {
  expect_lanes_to_end();
  expect_alive();
}

// The other side was stalled. It has accepted all lanes before it detects that they are closed.
TEST_F(ImpatientLanesTest, MayBeConfirmedAfterTheTimeout) {
  expect_lanes_to_end();
  say_lane(2);
  expect_alive();
}

// --- Over TLS, where the hello of a side waits for the handshake ---

// A peer that proves to be `name`, and an agent that listens.
class SecuredLanesTest : public LinkLanesTest {
 protected:
  test::TlsSocket socket_of(const std::string& name) {
    return {anna_.addresses().front(), authority_.issue(test::TestAuthority::agent(name))};
  }
  // Returns the peer's connection, which stays open.
  test::TlsSocket greet(const std::string& name) {
    auto socket = socket_of(name);
    socket.send(test::bytes_of(OutgoingMessage::hello({.name = name, .incarnation = 5, .lanes = 4})));
    const auto hello = socket.next();
    EXPECT_TRUE(hello && hello->prefix.kind == FrameKind::hello);
    if (hello) key_ = IncomingMessage(*hello, Limits{}).hello().lane_key;
    return socket;
  }
  void expect_alive(test::TlsSocket& connection) {
    connection.send(probe::plain(FrameKind::ping, 1));
    const auto pong = connection.next();
    EXPECT_TRUE(pong && pong->prefix.kind == FrameKind::pong);
    EXPECT_EQ(anna_.counts().connections_made, 1U);
    eventually("one connection is left", [&] { return anna_.counts().connections == 1; });
  }
  // Sent in one flight with the end of the handshake, so that the agent reads it before it can send its own
  // hello.
  void say(const Bytes& first, const Bytes& second) {
    auto socket = socket_of("eve");
    Bytes both = first;
    both.insert(both.end(), second.begin(), second.end());
    socket.send(both);
    while (socket.next()) {
    }
  }
  Bytes lane(std::uint16_t index) const { return test::bytes_of(OutgoingMessage::lane({key_, index, 2})); }

  const test::TestAuthority authority_;
  Agent& anna_ = add("anna", 2, std::make_shared<Credentials>(authority_.credentials("anna")));
  LaneKey key_{};
};

TEST_F(SecuredLanesTest, ALaneThatSendsAGoodbyeIsClosed) {
  auto connection = greet("eve");
  say(lane(0), test::bytes_of(OutgoingMessage::goodbye(std::nullopt)));
  expect_alive(connection);
}

TEST_F(SecuredLanesTest, ALaneThatSendsAHelloIsClosed) {
  auto connection = greet("eve");
  say(lane(0), probe::hello("eve"));
  expect_alive(connection);
}

TEST_F(SecuredLanesTest, LanesOfAnotherPeerAreRefused) {
  auto connection = greet("eve");
  auto first = socket_of("bert"), second = socket_of("bert");
  first.send(lane(0));
  second.send(lane(1));
  while (first.next()) {  // a hello, then the end
  }
  while (second.next()) {
  }
  expect_alive(connection);
  EXPECT_EQ(anna_.counts().lanes_made, 0U);
}

}  // namespace
}  // namespace weft::rpc::link_lanes_test
