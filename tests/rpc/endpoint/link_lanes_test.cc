// Lanes between agents: how they are made, which bytes they carry, and how failures are handled.
#include <asio/io_context.hpp>

#include <future>
#include <limits>

#include "tests/support/cluster.h"
#include "tests/support/tls_socket.h"

namespace weft::rpc::link_lanes_test {
namespace {

using probe::Bytes;
using namespace test;

constexpr std::uint64_t complete = 0, striped = 1;  // docs/internals/wire_protocol.md, "Lanes"
constexpr std::size_t block = 32'768;

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
    AgentOptions options = probe::over_tcp(name);
    options.credentials = std::move(credentials);
    options.loops = 3;
    options.lanes = lanes;
    auto& agent = agents_.emplace_back(std::make_unique<Agent>(std::move(options)));
    agent->serve(std::make_shared<Mirror>());
    return *agent;
  }
  // Both have `lanes` lanes.
  static void await_lanes(const Agent& a, const Agent& b, std::uint64_t lanes) {
    eventually("both have their lanes",
               [&] { return a.counts().lanes_made == lanes && b.counts().lanes_made == lanes; });
  }
  static Peer connect(Agent& from, Agent& to) {
    Peer peer = from.connect(to.addresses().front());
    got(peer.ready());
    return peer;
  }
  static void expect_mirrored(const Peer& peer) {
    for (const std::size_t size :
         {std::size_t{100}, block - 1, block, std::size_t{1} << 20, std::size_t{9'000'001}}) {
      const Buffer sent = filled(size, static_cast<unsigned>(size));
      EXPECT_TRUE(same(got(peer.call<&Mirror::back>(sent)), sent)) << size;
    }
  }
  std::vector<std::unique_ptr<Agent>> agents_;
};

TEST_F(LinkLanesTest, AreLimitedByBothSides) {
  Agent &anna = add("anna", 3), &bert = add("bert", 2);
  const Peer peer = connect(anna, bert);
  await_lanes(anna, bert, 2);
  expect_mirrored(peer);
  EXPECT_EQ(anna.counts().connections, 1U);
  EXPECT_EQ(bert.counts().connections, 1U);  // those that became lanes do not count
  EXPECT_EQ(bert.counts().handshakes, 0U);
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
  await_lanes(anna, bert, 2);
  expect_mirrored(peer);
}

TEST_F(LinkLanesTest, ExistOnlyNextToTcp) {
  Agent& anna = add("anna", 2);
  AgentOptions options{.name = "bert", .lanes = 2, .same_host = false};
  options.listen = {"unix:///tmp/weft-test-lanes-" + std::to_string(::getpid())};
  Agent bert(std::move(options));
  bert.serve(std::make_shared<Mirror>());
  expect_mirrored(connect(anna, bert));
  EXPECT_EQ(anna.counts().lanes_made + bert.counts().lanes_made, 0U);
}

TEST_F(LinkLanesTest, EndWithTheirConnection) {
  Agent &anna = add("anna", 2), &bert = add("bert", 2);
  const Peer peer = connect(anna, bert);
  await_lanes(anna, bert, 2);
  auto call = peer.call<&Mirror::size>(filled(64 << 20, 1));
  agents_.pop_back();  // destroys bert during the call or after it
  const auto error = test::error_of([&] { return call.get(); });
  if (error) {
    EXPECT_TRUE(error->kind() == ErrorKind::peer_lost || error->kind() == ErrorKind::shut_down)
        << error->what();
  }
}

// --- A hand-written peer that dials ---

Bytes step(std::uint64_t id) { return probe::plain(FrameKind::lane, id); }

// The bytes of a connection and its lanes, from position `at` on, as docs/internals/wire_protocol.md defines
// them.
struct Striped {
  std::vector<probe::Socket*> sockets;
  std::size_t at, first;  // the position, and the first striped block

  probe::Socket& next() const { return *sockets[at / block < first ? 0 : at / block % sockets.size()]; }
  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t n = std::min(bytes.size(), block - at % block);
      ASSERT_TRUE(next().send(bytes.first(n)));
      bytes = bytes.subspan(n);
      at += n;
    }
  }
  Bytes receive(std::size_t size) {
    Bytes bytes(size);
    for (std::span<std::byte> rest = bytes; !rest.empty();) {
      const std::size_t n = next().receive(rest.first(std::min(rest.size(), block - at % block)));
      if (n == 0) throw std::runtime_error("a stream has ended");
      rest = rest.subspan(n);
      at += n;
    }
    return bytes;
  }
};

// A peer that knows the key of its connection.
struct ByHand {
  explicit ByHand(Agent& agent)
      : address(agent.addresses().front()), connection(probe::Socket::connected(address)) {
    send(hello(0));
    const auto theirs = connection.next();
    EXPECT_EQ(IncomingMessage(*theirs, Limits{}).hello().lanes, 2U);
    received += bytes_of(*theirs);
    key = next_step();
  }
  static Bytes hello(std::uint64_t lane_key, std::uint64_t incarnation = 5) {
    return test::bytes_of(OutgoingMessage::hello(
        {.name = "by-hand", .incarnation = incarnation, .lanes = 4, .lane_key = lane_key}));
  }
  static std::size_t bytes_of(const InboundFrame& frame) {
    return Prefix::size + frame.prefix.message_bytes();
  }
  void send(const Bytes& bytes) {
    connection.send(bytes);
    sent += bytes.size();
  }
  probe::Socket lane(std::uint64_t number) const {
    auto socket = probe::Socket::connected(address);
    socket.send(hello(key + number));
    return socket;
  }
  // The next step that the agent states.
  std::uint64_t next_step() {
    const auto frame = connection.next();
    if (!frame || frame->prefix.kind != FrameKind::lane) throw std::runtime_error("no step of lanes");
    received += bytes_of(*frame);
    return frame->prefix.call_id;
  }
  void expect_alive() {
    send(probe::plain(FrameKind::ping, 1));
    const auto pong = connection.next();
    ASSERT_TRUE(pong);
    EXPECT_EQ(pong->prefix.kind, FrameKind::pong);
    received += bytes_of(*pong);
  }
  bool is_closed() { return connection.frames_to_end() == 0; }

  std::string address;
  probe::Socket connection;
  std::size_t sent = 0, received = 0;
  std::uint64_t key = 0;
};

TEST_F(LinkLanesTest, CarryTheBlocksInTurn) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  auto second = peer.lane(2), first = peer.lane(1);
  for (auto* lane : {&first, &second}) EXPECT_EQ(lane->next()->prefix.kind, FrameKind::hello);
  EXPECT_EQ(peer.next_step(), complete);
  EXPECT_EQ(anna.counts().lanes_made, 2U);
  peer.send(step(striped));
  EXPECT_EQ(peer.next_step(), striped);

  const std::vector<probe::Socket*> sockets{&peer.connection, &first, &second};
  Striped out{sockets, peer.sent, 1}, in{sockets, peer.received, 1};
  for (std::uint64_t id = 1; id <= 3; ++id) {  // the later ones begin within a block of a lane
    auto message = OutgoingMessage::request(1);
    const Buffer buffer = filled(1'000'000, static_cast<unsigned>(id));
    Codec<Buffer>::encode(message->argument(0), buffer);
    const OutboundFrame frame = message->seal_request({name_hash("mirror.back"), 0, 0}, id, 0);
    out.send(test::bytes_of(frame));
    const Bytes prefix_bytes = in.receive(Prefix::size);
    const Prefix prefix = decode(std::span<const std::byte, Prefix::size>(prefix_bytes), Limits{});
    ASSERT_EQ(prefix.kind, FrameKind::reply);
    const Bytes rest = in.receive(prefix.message_bytes());
    const auto body = std::span(rest).subspan(prefix.header_words * std::size_t{8});
    ASSERT_EQ(body.size(), padded(buffer.size()));
    EXPECT_EQ(std::memcmp(body.data(), buffer.data(), buffer.size()), 0) << id;
  }
}

TEST_F(LinkLanesTest, WithoutAConnectionAreRefused) {
  Agent& anna = add("anna", 2);
  for (const std::uint64_t key : {1ULL, 2ULL, 12345ULL, ~0ULL}) {
    auto stranger = probe::Socket::connected(anna.addresses().front());
    stranger.send(ByHand::hello(key));
    EXPECT_EQ(stranger.frames_to_end(), 1U);  // anna's hello
  }
  EXPECT_EQ(anna.counts().lanes_made, 0U);
}

TEST_F(LinkLanesTest, ThatWereNotOfferedAreClosed) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  auto first = peer.lane(1);
  EXPECT_TRUE(first.next());
  eventually("the first lane has arrived", [&] { return anna.counts().handshakes == 0; });
  for (const std::uint64_t number : {1, 3, 16, 17}) {  // a number that was used, and others
    auto lane = peer.lane(number);
    EXPECT_EQ(lane.frames_to_end(), 1U) << number;
  }
  const auto second = peer.lane(2);
  EXPECT_EQ(peer.next_step(), complete);
  auto late = peer.lane(2);
  EXPECT_EQ(late.frames_to_end(), 1U);
  peer.expect_alive();
}

TEST_F(LinkLanesTest, OfAnotherIncarnationAreRefused) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  auto lane = probe::Socket::connected(peer.address);
  lane.send(ByHand::hello(peer.key + 1, 6));
  EXPECT_EQ(lane.frames_to_end(), 1U);
  peer.expect_alive();
}

TEST_F(LinkLanesTest, StepsThatAreNotDueCloseTheConnection) {
  Agent& anna = add("anna", 2);
  for (const std::uint64_t id : {complete, striped, std::uint64_t{12345}}) {
    ByHand peer(anna);
    peer.send(step(id));
    EXPECT_TRUE(peer.is_closed()) << id;
  }
}

TEST_F(LinkLanesTest, ThatSendMoreThanAHelloAreClosed) {
  Agent& anna = add("anna", 2);
  ByHand peer(anna);
  auto lane = probe::Socket::connected(peer.address);
  Bytes more = ByHand::hello(peer.key + 1);
  const Bytes ping = probe::plain(FrameKind::ping, 1);
  more.insert(more.end(), ping.begin(), ping.end());
  lane.send(more);
  EXPECT_EQ(lane.frames_to_end(), 1U);
  peer.expect_alive();
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
  connection->send(step(1000));
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
  static constexpr std::uint64_t key = 1000;

  explicit DiallingLanesTest(std::chrono::nanoseconds timeout = std::chrono::seconds{10}) {
    AgentOptions options{.name = "anna", .loops = 2, .lanes = 2, .same_host = false};
    options.handshake_timeout = timeout;
    options.log = [](const LogRecord&) {};
    agent_ = std::make_unique<Agent>(std::move(options));
    const Peer peer = agent_->connect(listener_.address());
    ready_.emplace(peer.ready());
    connection_.emplace(listener_.accept());
    connection_->send(hello("by-hand"));
    EXPECT_EQ(connection_->next()->prefix.kind, FrameKind::hello);
    say(key);
    std::set<std::uint64_t> keys;
    for (int i = 0; i < 2; ++i) {
      lanes_.push_back(listener_.accept());
      const auto theirs = lanes_.back().next();
      keys.insert(IncomingMessage(*theirs, Limits{}).hello().lane_key);
    }
    EXPECT_EQ(keys, (std::set<std::uint64_t>{key + 1, key + 2}));
  }
  static Bytes hello(const std::string& name) {
    return test::bytes_of(OutgoingMessage::hello({.name = name, .incarnation = 5, .lanes = 2}));
  }
  void say(std::uint64_t id) { connection_->send(step(id)); }
  void greet_lanes() {
    for (auto& lane : lanes_) lane.send(hello("by-hand"));
  }
  void make_lanes() {
    greet_lanes();
    say(complete);
    EXPECT_TRUE(next(FrameKind::lane));
    say(striped);
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

class ImpatientLanesTest : public DiallingLanesTest {
 protected:
  ImpatientLanesTest() : DiallingLanesTest(std::chrono::milliseconds{200}) {}
};

TEST_F(DiallingLanesTest, AreUsedOnceBothSidesHaveThem) {
  greet_lanes();
  EXPECT_EQ(agent_->counts().lanes_made, 0U);
  say(complete);
  const auto said = next(FrameKind::lane);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->prefix.call_id, striped);
  EXPECT_EQ(agent_->counts().lanes_made, 2U);
  say(striped);
  expect_alive();
}

TEST_F(DiallingLanesTest, MayBeCompleteForThePeerFirst) {
  say(complete);
  expect_alive();
  greet_lanes();
  const auto said = next(FrameKind::lane);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->prefix.call_id, striped);
}

TEST_F(DiallingLanesTest, ThatAreOfferedAgainCloseTheConnection) {
  say(key);
  EXPECT_FALSE(next(FrameKind::lane));
}

TEST_F(DiallingLanesTest, ThatAreStripedBeforeTheyAreCompleteCloseTheConnection) {
  greet_lanes();
  say(striped);
  EXPECT_FALSE(next(FrameKind::lane));
}

TEST_F(DiallingLanesTest, ThatAreStripedTwiceCloseTheConnection) {
  make_lanes();
  say(striped);
  EXPECT_FALSE(next(FrameKind::lane));
}

TEST_F(LinkLanesTest, AKeyThatLeavesNoRoomForTheLanesClosesTheConnection) {
  AgentOptions options{.name = "anna", .lanes = 2, .same_host = false};
  options.log = [](const LogRecord&) {};
  Agent anna(std::move(options));
  auto listener = probe::Socket::listening();
  const auto ready = anna.connect(listener.address()).ready();
  auto connection = listener.accept();
  connection.send(test::bytes_of(OutgoingMessage::hello({.name = "by-hand", .incarnation = 5, .lanes = 2})));
  connection.send(step(std::numeric_limits<std::uint64_t>::max() - 1));
  EXPECT_GE(connection.frames_to_end(), 1U);
}

// The listener at the address may be stopped or hostile.
TEST_F(DiallingLanesTest, ToASilentListenerCloseWithTheAgent) {
  auto ended = std::async(std::launch::async, [&] { agent_.reset(); });
  connection_.reset();
  EXPECT_EQ(ended.wait_for(test::too_long / 2), std::future_status::ready);
  lanes_.clear();  // else it would hang for ever
}

TEST_F(DiallingLanesTest, CloseWithTheConnection) {
  greet_lanes();
  connection_.reset();
  expect_lanes_to_end();
}

TEST_F(DiallingLanesTest, AreNotUsedIfOneOfThemIsRefused) {
  lanes_.pop_back();
  greet_lanes();
  say(complete);
  expect_alive();
  EXPECT_EQ(agent_->counts().lanes_made, 0U);
}

// A load balancer may lead to another agent.
TEST_F(DiallingLanesTest, ToAnotherAgentAreNotUsed) {
  lanes_[0].send(hello("by-hand"));
  lanes_[1].send(hello("another"));
  EXPECT_EQ(lanes_[1].frames_to_end(), 0U);
  say(complete);
  expect_alive();
  EXPECT_EQ(agent_->counts().lanes_made, 0U);
}

// A listener that is stopped or hostile.
TEST_F(ImpatientLanesTest, WithoutAHelloTimeOut) { expect_lanes_to_end(); }

TEST_F(DiallingLanesTest, AreNotMadeByThePeer) {
  AgentOptions options{.name = "carl", .listen = {"tcp://127.0.0.1:0"}, .lanes = 2, .same_host = false};
  options.log = [](const LogRecord&) {};
  Agent carl(std::move(options));
  const auto ready = carl.connect(listener_.address()).ready();
  auto connection = listener_.accept();
  connection.send(hello("by-hand"));
  connection.send(step(key));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(listener_.accept().next());
  auto planted = probe::Socket::connected(carl.addresses().front());
  planted.send(ByHand::hello(key + 1));
  EXPECT_EQ(planted.frames_to_end(), 1U);
}

TEST_F(DiallingLanesTest, ThatAreLostDuringACallAllowItsRetry) {
  make_lanes();
  const RetryPolicy soon{.attempts = 1000, .first_wait = std::chrono::milliseconds{1}};
  const Buffer sent = filled(32 << 20, 1);
  auto call = agent_->connect(listener_.address())
                  .with({.retry = soon, .idempotent = true})
                  .call<&Mirror::size>(sent);
  std::array<std::byte, block> some;
  EXPECT_NE(lanes_.back().receive(some), 0U);  // the call is on its way
  lanes_.clear();
  while (connection_->receive(some) != 0) {  // the agent notices the loss in the turn of a lane
  }
  connection_.emplace(listener_.accept());
  connection_->send(
      test::bytes_of(OutgoingMessage::hello({.name = "by-hand", .incarnation = 5})));  // without lanes
  const auto again = next(FrameKind::request);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->attachments.at(0).size(), sent.size());
  connection_->send(probe::reply(std::uint64_t{7}, again->prefix.call_id));
  EXPECT_EQ(got(std::move(call)), 7U);
}

// --- Over TLS, where the hello of a side waits for the handshake ---

// A peer that proves to be `name`, and an agent that listens.
class SecuredLanesTest : public LinkLanesTest {
 protected:
  test::TlsSocket socket_of(const std::string& name) {
    return {anna_.addresses().front(), authority_.issue(test::TestAuthority::agent(name))};
  }
  static Bytes hello(const std::string& name, std::uint64_t lane_key = 0) {
    return test::bytes_of(
        OutgoingMessage::hello({.name = name, .incarnation = 5, .lanes = 4, .lane_key = lane_key}));
  }
  // Returns the peer's connection, which stays open.
  test::TlsSocket greet(const std::string& name) {
    auto socket = socket_of(name);
    socket.send(hello(name));
    const auto theirs = socket.next(), offer = socket.next();
    EXPECT_TRUE(theirs && theirs->prefix.kind == FrameKind::hello);
    EXPECT_TRUE(offer && offer->prefix.kind == FrameKind::lane);
    if (offer) key_ = offer->prefix.call_id;
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

  const test::TestAuthority authority_;
  Agent& anna_ = add("anna", 2, std::make_shared<Credentials>(authority_.credentials("anna")));
  std::uint64_t key_ = 0;
};

TEST_F(SecuredLanesTest, ALaneThatSendsAGoodbyeIsClosed) {
  auto connection = greet("eve");
  say(hello("eve", key_ + 1), test::bytes_of(OutgoingMessage::goodbye(std::nullopt)));
  expect_alive(connection);
}

TEST_F(SecuredLanesTest, ALaneThatSendsASecondHelloIsClosed) {
  auto connection = greet("eve");
  say(hello("eve", key_ + 1), hello("eve", key_ + 1));
  expect_alive(connection);
}

TEST_F(SecuredLanesTest, LanesOfAnotherPeerAreRefused) {
  auto connection = greet("eve");
  for (const char* name : {"bert", "eve"}) {  // neither its own name nor that of the other peer helps
    auto lane = socket_of("bert");
    lane.send(hello(name, key_ + 1));
    while (lane.next()) {  // a hello, then the end
    }
  }
  expect_alive(connection);
  EXPECT_EQ(anna_.counts().lanes_made, 0U);
}

}  // namespace
}  // namespace weft::rpc::link_lanes_test
