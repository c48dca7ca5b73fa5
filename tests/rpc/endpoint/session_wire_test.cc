// The numbers of resumable frames on the wire, from a peer whose connections are written by hand
// (docs/internals/wire_protocol.md, "Sessions").
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/endpoint/sessions.h>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::session_wire_test {
namespace {

using namespace probe;
using test::eventually;
using test::got;

// Records the numbers of calls. A call of `hold` completes when the test completes it, or when it is
// cancelled.
class Desk {
 public:
  std::int64_t note(std::int64_t number) {
    std::lock_guard lock(mutex_);
    noted_.push_back(number);
    return number;
  }
  Future<std::int64_t> hold(CallContext& call, std::int64_t number) {
    note(number);
    auto promise = std::make_shared<Promise<std::int64_t>>();
    call.on_cancel([this, promise] {
      ++cancelled;
      promise->fail(Error(ErrorKind::cancelled, "the caller does not wait any more"));
    });
    std::lock_guard lock(mutex_);
    held_ = promise;
    return promise->future();
  }
  std::vector<std::int64_t> noted() const {
    std::lock_guard lock(mutex_);
    return noted_;
  }
  void answer(std::int64_t number) {
    std::shared_ptr<Promise<std::int64_t>> held;
    {
      std::lock_guard lock(mutex_);
      held = std::exchange(held_, nullptr);
    }
    held->complete(Result<std::int64_t>(number));
  }

  using Service = rpc::Service<"desk", Method<"note", &Desk::note, non_blocking, resumable>,
                               Method<"hold", &Desk::hold, non_blocking, resumable>>;
  std::atomic<int> cancelled{0};

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::int64_t> noted_;
  std::shared_ptr<Promise<std::int64_t>> held_;
};

// A connection of the peer "hand", which has seen the agent's hello and count.
class Connection {
 public:
  // accepted: the number of frames that this peer's hello acknowledges.
  explicit Connection(Agent& agent, std::uint64_t accepted = 0)
      : socket_(Socket::connected(agent.addresses().front())) {
    HelloInfo hello;
    hello.features = features::sessions;
    hello.name = "hand";
    hello.incarnation = 7;
    socket_.send(test::bytes_of(OutgoingMessage::hello(hello)));
    socket_.send(plain(FrameKind::received, accepted));
    EXPECT_EQ(next()->kind, FrameKind::hello);
    const auto count = next();
    EXPECT_EQ(count->kind, FrameKind::received);
    agents_count = count->call_id;
  }

  void send(const Bytes& frame) { socket_.send(frame); }
  void request(std::string_view method, std::int64_t number, std::uint64_t id) {
    send(sealed(probe::request(number), method, id, frame_flags::resumable));
  }
  void request_that_accepts(std::uint32_t accepted, std::uint64_t id) {
    RequestInfo info{.method = name_hash("desk.note"), .signature = 1};
    info.accepted = accepted;
    send(test::bytes_of(probe::request(std::int64_t{10})->seal_request(info, id, frame_flags::resumable)));
  }
  void cancel(std::uint64_t id) {
    OutboundFrame frame = OutgoingMessage::plain(FrameKind::cancel, id);
    add_flag(frame.head.bytes(), frame_flags::resumable);
    send(test::bytes_of(frame));
  }
  std::optional<Prefix> next() {
    const auto frame = socket_.next();
    return frame ? std::optional(frame->prefix) : std::nullopt;
  }
  // The next frame other than an acknowledgement.
  std::optional<Prefix> next_but_received() {
    auto frame = next();
    while (frame && frame->kind == FrameKind::received && frame->call_id != Session::over) frame = next();
    return frame;
  }
  // call_id: for a reply its call, for other frames a count or a number.
  void expect(FrameKind kind, std::uint64_t call_id) {
    const auto frame = next_but_received();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->kind, kind);
    EXPECT_EQ(frame->call_id, call_id);
  }
  void expect_reply(std::uint64_t id) { expect(FrameKind::reply, id); }
  // An end without a goodbye, as of a lost connection.
  void lose() { socket_.end_sending(); }

  std::uint64_t agents_count = 0;

 private:
  Socket socket_;
};

class SessionWire : public testing::Test {
 protected:
  SessionWire()
      : agent_({.name = "node",
                .listen = {"tcp://127.0.0.1:0"},
                .same_host = false,
                .log = [](const LogRecord&) {}}) {
    agent_.serve(desk_);
  }
  void wait_for_links(std::size_t number) {
    eventually("the connections", [&] { return agent_.core()->links().to({"hand", 7}).size() == number; });
  }

  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  Agent agent_;
};

using Numbers = std::vector<std::int64_t>;

TEST_F(SessionWire, ARepeatedFrameOnAnotherConnectionIsDropped) {
  {
    Connection first(agent_);
    first.request("desk.note", 10, 1);
    first.expect_reply(1);
  }
  Connection second(agent_, 1);
  EXPECT_EQ(second.agents_count, 1U);
  second.request("desk.note", 10, 1);
  second.request("desk.note", 11, 2);
  second.expect(FrameKind::resume, 1);
  second.expect_reply(2);
  EXPECT_EQ(desk_->noted(), (Numbers{10, 11}));
}

TEST_F(SessionWire, AnUnacknowledgedFrameIsRepeatedOverAnotherConnection) {
  {
    Connection first(agent_);
    for (std::int64_t id : {1, 2, 3}) first.request("desk.note", id, static_cast<std::uint64_t>(id));
    for (const std::uint64_t id : {1, 2, 3}) first.expect_reply(id);
  }
  Connection second(agent_, 1);
  second.expect(FrameKind::resume, 1);
  second.expect_reply(2);
  second.expect_reply(3);
  EXPECT_EQ(desk_->noted(), (Numbers{1, 2, 3}));
}

// A notification borrows larger attachments, and copies smaller ones.
TEST_F(SessionWire, ANotificationCompletesOnceItsAttachmentsAreReleased) {
  Connection peer(agent_);
  wait_for_links(1);
  const auto notify = [&](std::size_t size) {
    OutgoingCall call = agent_.peer("hand").make_call("desk.keep", 1);
    call.notify = call.resumable = true;
    call.begin();
    Codec<Buffer>::encode(call.message().argument(0), filled(size));
    call.end();
    auto ended = std::make_shared<Promise<void>>();
    auto future = ended->future();
    agent_.peer("hand").start(std::move(call),
                              [ended](Result<PendingCall::Reply>) { ended->complete(Result<void>{}); });
    return future;
  };
  auto small = notify(1000), large = notify(1 << 20);
  EXPECT_EQ(peer.next()->kind, FrameKind::request);
  got(std::move(small));  // without an acknowledgement
  EXPECT_EQ(peer.next()->kind, FrameKind::request);
  EXPECT_FALSE(large.ready());
  peer.send(plain(FrameKind::received, 2));
  got(std::move(large));
}

TEST_F(SessionWire, ANumberMayBeStatedBetweenFrames) {
  Connection peer(agent_);
  peer.request("desk.note", 10, 1);
  peer.request("desk.note", 11, 2);
  peer.send(plain(FrameKind::resume, 1));
  peer.request("desk.note", 11, 2);
  peer.request("desk.note", 12, 3);
  for (const std::uint64_t id : {1, 2, 3}) peer.expect_reply(id);
  EXPECT_EQ(desk_->noted(), (Numbers{10, 11, 12}));
}

TEST_F(SessionWire, AMissingNumberClosesTheSession) {
  Connection peer(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
  peer.send(plain(FrameKind::resume, 2));
  peer.request("desk.note", 12, 3);
  peer.expect(FrameKind::received, Session::over);
  EXPECT_EQ(desk_->noted(), Numbers{10});
}

TEST_F(SessionWire, AnAcknowledgementOfUnsentFramesClosesTheConnection) {
  Connection peer(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
  peer.send(plain(FrameKind::received, 2));
  while (const auto frame = peer.next())
    EXPECT_TRUE(frame->kind == FrameKind::received || frame->kind == FrameKind::goodbye);
}

TEST_F(SessionWire, ARequestAcknowledgesTheFramesThatItsSenderHasAccepted) {
  Connection peer(agent_);
  peer.request_that_accepts(0, 1);
  peer.expect_reply(1);
  wait_for_links(1);
  const auto session = agent_.core()->links().to({"hand", 7}).front()->session();
  const std::uint64_t of_one_reply = session->kept_bytes();
  EXPECT_GT(of_one_reply, 0U);
  peer.request_that_accepts(1, 2);
  peer.expect_reply(2);
  EXPECT_EQ(session->kept_bytes(), of_one_reply);
  peer.request_that_accepts(0, 3);  // a repeated request may state this
  peer.expect_reply(3);
  EXPECT_EQ(session->kept_bytes(), 2 * of_one_reply);
  peer.request_that_accepts(4, 4);  // more frames than were sent
  while (const auto frame = peer.next())
    EXPECT_TRUE(frame->kind == FrameKind::received || frame->kind == FrameKind::goodbye);
}

TEST_F(SessionWire, ACancelOverAnotherConnectionReachesTheCall) {
  Connection first(agent_);
  first.request("desk.hold", 10, 1);
  eventually("the call runs", [&] { return desk_->noted().size() == 1; });
  Connection second(agent_);
  wait_for_links(2);
  second.send(plain(FrameKind::resume, 1));
  second.cancel(1);
  eventually("the call is cancelled", [&] { return desk_->cancelled == 1; });
}

TEST_F(SessionWire, ACancelAfterTheEndOfTheCallsConnectionReachesTheCall) {
  Connection second = [&] {
    Connection first(agent_);
    first.request("desk.hold", 10, 1);
    eventually("the call runs", [&] { return desk_->noted().size() == 1; });
    return Connection(agent_);
  }();
  wait_for_links(1);
  second.send(plain(FrameKind::resume, 1));
  second.cancel(1);
  eventually("the call is cancelled", [&] { return desk_->cancelled == 1; });
}

TEST_F(SessionWire, AReplyUsesAnotherConnectionIfThatOfTheCallHasEnded) {
  Connection second = [&] {
    Connection first(agent_);
    first.request("desk.hold", 10, 1);
    eventually("the call runs", [&] { return desk_->noted().size() == 1; });
    return Connection(agent_);
  }();
  wait_for_links(1);
  desk_->answer(10);
  second.expect_reply(1);
}

// A frame that waits for a connection may be acknowledged meanwhile. The link states the number of the next
// one, so the session has to tell it.
TEST_F(SessionWire, FramesThatAreAcknowledgedBeforeTheirRepetitionAreOmitted) {
  Connection peer(agent_);
  wait_for_links(1);
  const auto link = agent_.core()->links().to({"hand", 7}).front();
  const auto session = std::make_shared<Session>(AgentId{"hand", 7}, 1, 1 << 20);
  for (const std::uint64_t id : {1, 2, 3}) {
    auto reply = OutgoingMessage::reply();
    reply->result().set_nil();
    EXPECT_FALSE(session->answer(id, reply->seal_reply(id, frame_flags::resumable), nullptr).next);
  }
  ASSERT_TRUE(session->use(link));
  EXPECT_EQ(session->next(*link)->number, 0U);
  EXPECT_TRUE(session->acknowledged(2));
  const auto next = session->next(*link);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number, 2U);
  EXPECT_FALSE(session->next(*link));
  EXPECT_FALSE(session->acknowledged(4)) << "more than there are";
  session->end(Error(ErrorKind::peer_lost, "the test has ended"));
}

// The peer has accepted frames of a session that this agent has ended, and that it no longer remembers.
TEST_F(SessionWire, ASessionThatThisAgentHasForgottenEnds) {
  Connection peer(agent_, 5);
  EXPECT_EQ(peer.agents_count, 0U);
  peer.expect(FrameKind::received, Session::over);
  eventually("the peer counts as gone", [&] { return agent_.core()->sessions().is_gone({"hand", 7}); });
}

}  // namespace
}  // namespace weft::rpc::session_wire_test
