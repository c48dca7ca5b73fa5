// The frames of a session on the wire, from a peer whose connections are written by hand
// (docs/internals/wire_protocol.md, "Sessions").
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/wire/protocol.h>

#include <algorithm>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::session_wire_test {
namespace {

using namespace probe;
using namespace test;

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

  using Service =
      rpc::Service<"desk", Method<"note", &Desk::note, non_blocking>,
                   Method<"hold", &Desk::hold, non_blocking>, Method<"answer", &Desk::answer, non_blocking>>;
  std::atomic<int> cancelled{0};

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::int64_t> noted_;
  std::shared_ptr<Promise<std::int64_t>> held_;
};

Buffer page(std::int64_t bytes) { return Buffer::allocate(static_cast<std::size_t>(bytes)); }
using Page = Function<"page", &page>;

// A connection of a peer that has seen the agent's hello. "hand" chooses the connection, because its name is
// below "node"; with "zoe", the agent does.
class Connection {
 public:
  // max_replies: of the hello.
  explicit Connection(Agent& agent, const std::string& name = "hand", std::uint64_t incarnation = 7,
                      std::uint64_t max_replies = 0)
      : socket_(Socket::connected(agent.addresses().front())) {
    socket_.send(test::bytes_of(OutgoingMessage::hello({.features = features::sessions,
                                                        .name = name,
                                                        .incarnation = incarnation,
                                                        .max_replies = max_replies})));
    EXPECT_EQ(next()->prefix.kind, FrameKind::hello);
  }

  void send(const Bytes& frame) { socket_.send(frame); }
  void resume(const ResumeInfo& info) { send(test::bytes_of(OutgoingMessage::resume(info))); }
  void request(std::string_view method, std::int64_t number, std::uint64_t id, std::uint16_t flags = 0) {
    send(sealed(probe::request(number), method, id, flags));
  }
  void request_that_accepts(std::uint32_t accepted, std::uint64_t id) {
    RequestInfo info{.method = name_hash("desk.note"), .signature = 1};
    info.accepted = accepted;
    send(test::bytes_of(probe::request(std::int64_t{10})->seal_request(info, id, 0)));
  }
  std::optional<InboundFrame> next() { return socket_.next(); }
  // The next frame other than an acknowledgement, or the question of an agent without a session.
  std::optional<InboundFrame> next_but_received() {
    for (;;) {
      auto frame = next();
      if (!frame) return frame;
      if (frame->prefix.kind == FrameKind::received) continue;
      if (frame->prefix.kind != FrameKind::resume) return frame;
      const ResumeInfo info = IncomingMessage(*frame, Limits{}).resume();
      if (info.session != 0 || info.epoch != 0) return frame;
    }
  }
  void expect_next(FrameKind kind, std::uint64_t id) {
    const auto frame = next();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->prefix.kind, kind);
    EXPECT_EQ(frame->prefix.call_id, id);
  }
  void expect_reply(std::uint64_t id) {
    const auto frame = next_but_received();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->prefix.kind, FrameKind::reply);
    EXPECT_EQ(frame->prefix.call_id, id);
  }
  // `resume` of the agent. After an error, an empty one.
  ResumeInfo resumed() {
    auto frame = next_but_received();
    EXPECT_TRUE(frame && frame->prefix.kind == FrameKind::resume);
    if (!frame || frame->prefix.kind != FrameKind::resume) return {};
    return IncomingMessage(std::move(*frame), Limits{}).resume();
  }
  // Chooses this connection for session 1.
  ResumeInfo choose(std::uint64_t epoch, std::uint64_t accepted) {
    resume({.session = 1, .epoch = epoch, .accepted = accepted, .is_new = epoch == 1});
    return resumed();
  }
  void expect_end() {
    while (const auto frame = next())
      EXPECT_TRUE(frame->prefix.kind == FrameKind::received || frame->prefix.kind == FrameKind::goodbye);
  }

 private:
  Socket socket_;
};

// The first connection of session 1.
Connection chosen(Agent& agent) {
  Connection first(agent);
  first.choose(1, 0);
  return first;
}
// The connection after it, once the agent has asked for one.
Connection chosen_again(Agent& agent, std::uint64_t accepted) {
  Connection second(agent);
  EXPECT_EQ(second.resumed().epoch, 1U);
  second.choose(2, accepted);
  return second;
}

class SessionWire : public testing::Test {
 protected:
  SessionWire() : agent_(over_tcp("node")) { agent_.serve(desk_); }
  std::shared_ptr<Session> session() { return agent_.core()->sessions().find(hand_); }
  // A layer's notification.
  Future<void> notify(const Buffer& bytes) {
    OutgoingCall call = agent_.peer("hand").calls().make("desk.keep", 1);
    call.notify = true;
    call.begin();
    Codec<Buffer>::encode(call.message().argument(0), bytes);
    call.end();
    auto ended = std::make_shared<Promise<void>>();
    auto future = ended->future();
    agent_.peer("hand").calls().start(
        std::move(call), [ended](Result<PendingCall::Reply>) { ended->complete(Result<void>{}); });
    return future;
  }

  const AgentId hand_{"hand", 7};
  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  Agent agent_;
};

using Numbers = std::vector<std::int64_t>;

TEST_F(SessionWire, BothStateWhatTheyHaveAcceptedAndSendTheRest) {
  {
    Connection first(agent_);
    EXPECT_EQ(first.choose(1, 0).accepted, 0U);
    for (std::int64_t id : {1, 2, 3}) first.request("desk.note", id, static_cast<std::uint64_t>(id));
    for (const std::uint64_t id : {1, 2, 3}) first.expect_reply(id);
  }
  Connection second(agent_);
  const ResumeInfo asked = second.resumed();
  EXPECT_EQ(asked.session, 1U) << "the agent may be without a connection while its peer believes in one";
  EXPECT_EQ(asked.epoch, 1U);
  const ResumeInfo answer = second.choose(2, 1);
  EXPECT_EQ(answer.session, 1U);
  EXPECT_EQ(answer.epoch, 2U);
  EXPECT_EQ(answer.accepted, 3U);
  second.expect_reply(2);
  second.expect_reply(3);
  second.request("desk.note", 4, 4);
  second.expect_reply(4);
  EXPECT_EQ(desk_->noted(), (Numbers{1, 2, 3, 4}));
}

// The earlier connection is open, and closes with the loss of nothing.
TEST_F(SessionWire, AChoiceMovesCallsToTheOtherConnection) {
  Connection first = chosen(agent_);
  first.request("desk.hold", 10, 1);
  eventually("the call runs", [&] { return desk_->noted().size() == 1; });
  Connection second(agent_);
  EXPECT_EQ(second.choose(2, 0).accepted, 1U);
  first.request("desk.note", 11, 2);  // too late: it is to be sent again
  desk_->answer(10);
  second.expect_reply(1);
  second.request("desk.note", 11, 2);
  second.expect_reply(2);
  second.request("desk.hold", 12, 3);
  eventually("another call runs", [&] { return desk_->noted().size() == 3; });
  second.send(plain(FrameKind::cancel, 3));
  eventually("it is cancelled", [&] { return desk_->cancelled == 1; });
  EXPECT_EQ(desk_->noted(), (Numbers{10, 11, 12}));
}

TEST_F(SessionWire, AnEarlierChoiceThatArrivesLateHasNoEffect) {
  Connection first(agent_), second(agent_);
  second.resume({.session = 1, .epoch = 2, .is_new = true});
  EXPECT_EQ(second.resumed().epoch, 2U);
  first.resume({.session = 1, .epoch = 1, .is_new = true});
  second.request("desk.note", 10, 1);
  second.expect_reply(1);
}

// The agent is the chooser: what follows the answer waits for the session.
TEST_F(SessionWire, TheAgentWithTheSmallerIdChooses) {
  Connection peer(agent_, "zoe");
  const ResumeInfo choice = peer.resumed();
  EXPECT_TRUE(choice.is_new);
  EXPECT_EQ(choice.epoch, 1U);
  peer.resume({.session = choice.session, .epoch = 1});
  for (std::uint64_t id = 1; id <= 20; ++id) peer.request("desk.note", 1, id);
  for (std::uint64_t id = 1; id <= 20; ++id) peer.expect_reply(id);

  Connection surplus(agent_, "zoe");
  Connection other(agent_, "zoe");
  other.resume({.session = choice.session, .epoch = 1});  // asks
  const ResumeInfo again = other.resumed();
  EXPECT_EQ(again.session, choice.session);
  EXPECT_EQ(again.epoch, 2U);
  EXPECT_EQ(again.accepted, 20U);
  EXPECT_FALSE(again.is_new);
  other.resume({.session = choice.session, .epoch = 2, .accepted = 20});
  other.request("desk.note", 2, 21);
  other.expect_reply(21);
  peer.expect_end();  // the chooser closes what it has left
}

TEST_F(SessionWire, CallsBeforeTheChoiceCloseTheConnection) {
  Connection peer(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_end();
  EXPECT_TRUE(desk_->noted().empty());
}

TEST_F(SessionWire, AConnectionThatIsNotChosenInTimeCloses) {
  Agent hasty(over_tcp("node", std::chrono::milliseconds{50}));
  Connection(hasty).expect_end();
}

// The connection in use and the latest ones stay.
TEST_F(SessionWire, TheConnectionsOfOnePeerAreLimited) {
  for (const bool peer_chooses : {true, false}) {
    const std::string name = peer_chooses ? "hand" : "zoe";
    Agent patient(over_tcp("node", std::chrono::hours{1}));
    patient.serve(desk_);
    std::vector<Connection> others;
    const auto open_forty = [&] {
      const auto made = patient.counts().connections_made;
      for (int i = 0; i < 40; ++i) others.emplace_back(patient, name);
      eventually("all were made", [&] { return patient.counts().connections_made == made + 40; });
      eventually("few are left", [&] { return patient.counts().connections == 16; });
    };
    if (peer_chooses) open_forty();  // and chooses none of them
    Connection used(patient, name);
    if (peer_chooses) {
      used.choose(1, 0);
    } else {
      used.resume({.session = used.resumed().session, .epoch = 1});
    }
    open_forty();
    used.request("desk.note", 1, 1);
    used.expect_reply(1);
    EXPECT_FALSE(others.front().next_but_received()) << "it has closed";
    if (!peer_chooses) continue;
    others.back().choose(2, 1);
    others.back().request("desk.note", 2, 2);
    others.back().expect_reply(2);
  }
}

// Otherwise each choice would queue all kept frames again.
TEST_F(SessionWire, ASecondChoiceOfAConnectionClosesIt) {
  Connection peer = chosen(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
  peer.resume({.session = 1, .epoch = 2});
  peer.expect_end();
}

// The peer has ended its session, while the agent relies on a connection that is half open.
TEST_F(SessionWire, AQuestionWithoutASessionEndsTheOldOne) {
  Connection half_open(agent_, "zoe");
  const ResumeInfo first = half_open.resumed();
  half_open.resume({.session = first.session, .epoch = 1});
  half_open.request("desk.note", 1, 1);
  half_open.expect_reply(1);
  Connection next(agent_, "zoe");
  next.resume({});
  const ResumeInfo second = next.resumed();
  EXPECT_EQ(second.session, first.session);
  EXPECT_EQ(second.epoch, 2U);
  next.resume({.session = 0, .epoch = 2});
  const ResumeInfo renewed = next.resumed();
  EXPECT_TRUE(renewed.is_new);
  EXPECT_NE(renewed.session, first.session);
  next.resume({.session = renewed.session, .epoch = renewed.epoch});
  next.request("desk.note", 2, 1);
  next.expect_reply(1);
}

// The peer has lost the chosen connection, or has ended its session, before its answer has arrived.
TEST_F(SessionWire, AQuestionInsteadOfAnAnswerMovesTheChoice) {
  Connection first(agent_, "zoe");
  const ResumeInfo choice = first.resumed();
  Connection second(agent_, "zoe");
  second.resume({.session = choice.session, .epoch = 1});
  EXPECT_EQ(second.resumed().epoch, 2U);
  Connection third(agent_, "zoe");
  third.resume({});
  EXPECT_EQ(third.resumed().epoch, 3U);
  third.resume({.session = choice.session, .epoch = 3});
  third.request("desk.note", 1, 1);
  third.expect_reply(1);
}

// The chosen connection is half open, so the choice does not reach the peer.
TEST_F(SessionWire, AQuestionThatIsOlderThanAnUnansweredChoiceMovesIt) {
  std::optional<Connection> first(std::in_place, agent_, "zoe");
  const ResumeInfo choice = first->resumed();
  first->resume({.session = choice.session, .epoch = 1});
  Connection second(agent_, "zoe");
  eventually("the second is open", [&] { return agent_.counts().connections == 2; });
  Connection third(agent_, "zoe");
  eventually("the third is open", [&] { return agent_.counts().connections == 3; });
  first.reset();
  EXPECT_EQ(third.resumed().epoch, 2U);
  second.resume({.session = choice.session, .epoch = 1});
  EXPECT_EQ(second.resumed().epoch, 3U);
  third.resume({.session = choice.session, .epoch = 2});  // too late
  second.resume({.session = choice.session, .epoch = 3});
  second.request("desk.note", 1, 1);
  second.expect_reply(1);
}

// Otherwise the peer would rely on a connection that is half open.
TEST_F(SessionWire, AnAgentThatHasEndedItsSessionStatesThis) {
  Connection first = chosen(agent_);
  agent_.core()->lose(hand_, Error(ErrorKind::peer_lost, "the test lost it"));
  first.expect_end();
  Connection second(agent_);
  const auto question = second.next();
  ASSERT_TRUE(question && question->prefix.kind == FrameKind::resume);
  const ResumeInfo info = IncomingMessage(*question, Limits{}).resume();
  EXPECT_EQ(info.session + info.epoch + info.accepted, 0U);
  second.resume({.session = 1, .epoch = 2});
  EXPECT_EQ(second.resumed().session, 0U);
}

TEST_F(SessionWire, AConnectionThatThePeerHasLeftCloses) {
  Agent hasty(over_tcp("node", std::chrono::milliseconds{500}));
  Connection first = chosen(hasty);
  Connection second(hasty);
  second.choose(2, 0);
  first.expect_end();
}

TEST_F(SessionWire, AGoodbyeOverAConnectionThatWasLeftCounts) {
  Connection first = chosen(agent_);
  Connection second(agent_);
  second.choose(2, 0);
  first.send(test::bytes_of(OutgoingMessage::goodbye(std::nullopt)));
  eventually("the peer is leaving", [&] { return session()->is_leaving(); });
}

TEST_F(SessionWire, AnAcknowledgementOfUnsentFramesClosesTheConnection) {
  Connection peer = chosen(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
  peer.send(plain(FrameKind::received, 2));
  peer.expect_end();
}

TEST_F(SessionWire, AChoiceThatAcknowledgesUnsentFramesClosesTheConnection) {
  Connection peer(agent_);
  peer.resume({.session = 1, .epoch = 1, .accepted = 3, .is_new = true});
  peer.expect_end();
}

TEST_F(SessionWire, AChoiceThatAcknowledgesFewerFramesThanBeforeClosesTheConnection) {
  Connection first = chosen(agent_);
  for (const std::uint64_t id : {1, 2}) first.request("desk.note", 10, id);
  for (const std::uint64_t id : {1, 2}) first.expect_reply(id);
  first.send(plain(FrameKind::received, 2));
  eventually("both are released", [&] { return session()->kept_bytes() == 0; });
  Connection second(agent_);
  second.resume({.session = 1, .epoch = 2, .accepted = 1});
  second.expect_end();
}

// A large reply that no call awaits is read without being stored.
TEST_F(SessionWire, AFrameThatIsSkippedCounts) {
  Connection first = chosen(agent_);
  first.send(reply(Buffer::allocate(2 << 20), 77));
  first.request("desk.note", 10, 1);
  first.expect_reply(1);
  Connection second(agent_);
  EXPECT_EQ(second.choose(2, 1).accepted, 2U);
}

TEST_F(SessionWire, ARequestAcknowledgesTheFramesThatItsSenderHasAccepted) {
  Connection peer = chosen(agent_);
  peer.request_that_accepts(0, 1);
  peer.expect_reply(1);
  const std::uint64_t of_one_reply = session()->kept_bytes();
  EXPECT_GT(of_one_reply, 0U);
  peer.request_that_accepts(1, 2);
  peer.expect_reply(2);
  EXPECT_EQ(session()->kept_bytes(), of_one_reply);
  peer.request_that_accepts(0, 3);  // a repeated request may state this
  peer.expect_reply(3);
  EXPECT_EQ(session()->kept_bytes(), 2 * of_one_reply);
  peer.request_that_accepts(4, 4);  // more frames than were sent
  peer.expect_end();
}

// A layer's notification completes when it was sent, unless its attachments are large.
TEST_F(SessionWire, ANotificationCompletesOnceItsAttachmentsAreReleased) {
  Connection peer = chosen(agent_);
  auto small = notify(filled(2000)), large = notify(filled(1 << 20));
  EXPECT_EQ(peer.next()->prefix.kind, FrameKind::request);
  got(std::move(small));  // without an acknowledgement
  EXPECT_EQ(peer.next()->prefix.kind, FrameKind::request);
  EXPECT_FALSE(large.ready());
  peer.send(plain(FrameKind::received, 2));
  got(std::move(large));
}

// The program may change the memory of a notification that has completed, though the peer has not accepted
// it.
TEST_F(SessionWire, ANotificationIsSentAgainAsItWas) {
  Buffer lent = filled(2000);
  const Buffer before = Buffer::copy(lent.bytes());
  {
    Connection first = chosen(agent_);
    got(notify(lent));
    EXPECT_EQ(first.next()->prefix.kind, FrameKind::request);
  }
  std::fill(lent.bytes().begin(), lent.bytes().end(), std::byte{0});
  Connection second = chosen_again(agent_, 0);
  const auto again = second.next_but_received();
  ASSERT_TRUE(again && again->attachments.size() == 1);
  EXPECT_TRUE(std::ranges::equal(again->attachments.front().bytes(), before.bytes()));
}

// A program's notification completes when the callee has accepted it, and fails if it never will.
TEST_F(SessionWire, TheFutureOfANotificationWaitsForItsAcceptance) {
  const Peer to_peer = agent_.peer("hand");
  std::optional<Connection> peer(chosen(agent_));
  auto accepted = to_peer.notify<&Desk::note>(1);
  const auto frame = peer->next();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->prefix.flags, frame_flags::notify | frame_flags::acknowledge);
  EXPECT_FALSE(accepted.ready());
  peer->send(plain(FrameKind::received, 1));
  got(std::move(accepted));
  auto never = to_peer.notify<&Desk::note>(2);
  EXPECT_EQ(peer->next()->prefix.kind, FrameKind::request);
  peer->send(test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind::unavailable, "it ends"))));
  expect_error([&] { got(std::move(never)); }, ErrorKind::peer_lost, Execution::maybe_executed);
}

TEST_F(SessionWire, AFrameThatAsksForItIsAcknowledgedAtOnce) {
  Connection peer = chosen(agent_);
  peer.request("desk.note", 1, 1, frame_flags::notify | frame_flags::acknowledge);
  peer.expect_next(FrameKind::received, 1);
}

// The handler of the notification answers an earlier call, whose reply acknowledges that call alone.
TEST_F(SessionWire, AReplyDoesNotReplaceTheAcknowledgementOfALaterFrame) {
  Connection peer = chosen(agent_);
  peer.request("desk.hold", 10, 1);
  peer.request("desk.answer", 10, 2, frame_flags::notify | frame_flags::acknowledge);
  peer.expect_next(FrameKind::reply, 1);
  peer.expect_next(FrameKind::received, 2);
}

// The end of a notification makes a call while the frames that follow it are about to be sent again.
TEST_F(SessionWire, CallsThatAnAcknowledgementCausesFollowTheFramesBeforeThem) {
  const Peer to_peer = agent_.peer("hand");
  Future<std::int64_t> second_call, third_call;
  {
    Connection first = chosen(agent_);
    to_peer.notify<&Desk::note>(1).then([&](Result<void>&&) { third_call = to_peer.call<&Desk::note>(3); });
    second_call = to_peer.call<&Desk::note>(2);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(first.next()->prefix.kind, FrameKind::request);
  }
  Connection second = chosen_again(agent_, 1);  // it has accepted the notification alone
  for (const std::int64_t number : {2, 3}) {
    const auto frame = second.next_but_received();
    ASSERT_TRUE(frame);
    const std::uint64_t id = frame->prefix.call_id;
    EXPECT_EQ(IncomingMessage(*frame, Limits{}).argument(0).get_int(), number);
    second.send(reply(number, id));
  }
  EXPECT_EQ(got(std::move(second_call)), 2);
  EXPECT_EQ(got(std::move(third_call)), 3);
}

// So does the end of the session.
TEST_F(SessionWire, AnAcknowledgementMayCauseTheEndOfTheSession) {
  {
    Connection first = chosen(agent_);
    agent_.peer("hand").notify<&Desk::note>(1).then(
        [&](Result<void>&&) { agent_.core()->lose(hand_, Error(ErrorKind::peer_lost, "the test lost it")); });
    EXPECT_EQ(first.next()->prefix.kind, FrameKind::request);
  }
  Connection second(agent_);
  EXPECT_EQ(second.resumed().epoch, 1U);
  second.resume({.session = 1, .epoch = 2, .accepted = 1});
  while (second.next()) {
  }
  EXPECT_FALSE(agent_.core()->sessions().knows(hand_));
}

// A cancellation takes the place of a request that waits to be sent again.
TEST_F(SessionWire, ARequestThatWasCancelledDuringAnAbsenceIsNotSentAgain) {
  const Peer to_peer = agent_.peer("hand");
  Future<std::int64_t> call;
  {
    Connection first = chosen(agent_);
    call = to_peer.call<&Desk::note>(1);
    EXPECT_EQ(first.next()->prefix.kind, FrameKind::request);
  }
  eventually("the peer is absent", [&] { return agent_.core()->sessions().is_absent(hand_); });
  call.cancel();
  EXPECT_EQ(test::kind_of([&] { return got(std::move(call)); }), ErrorKind::cancelled);
  Connection second = chosen_again(agent_, 0);
  auto again = to_peer.call<&Desk::note>(2);
  const auto withdrawn = second.next_but_received(), cancel = second.next_but_received(),
             request = second.next_but_received();
  ASSERT_TRUE(withdrawn && cancel && request);
  EXPECT_EQ(withdrawn->prefix.kind, FrameKind::cancel);
  EXPECT_EQ(cancel->prefix.kind, FrameKind::cancel);
  EXPECT_EQ(request->prefix.kind, FrameKind::request);
  second.send(reply(std::int64_t{2}, request->prefix.call_id));
  EXPECT_EQ(got(std::move(again)), 2);
  eventually("no call is left", [&] { return agent_.counts().waiting == 0; });
  EXPECT_EQ(session()->requests_sent(), 1U) << "the peer counts the requests that have arrived";
}

// A peer that acknowledges nothing, and that accepts few bytes of replies.
TEST_F(SessionWire, RefusalsThatThePeerDoesNotAcknowledgeAreLimited) {
  Connection peer(agent_, "hand", 7, 1);
  peer.choose(1, 0);
  auto drained = agent_.drain(std::chrono::minutes{1});
  EXPECT_EQ(peer.next()->prefix.kind, FrameKind::goodbye);
  for (std::uint64_t first = 1; first <= 4096; first += 64) {
    for (std::uint64_t id = first; id < first + 64; ++id) peer.request("desk.note", 1, id);
    for (std::uint64_t id = first; id < first + 64; ++id) peer.expect_reply(id);
  }
  EXPECT_TRUE(session()->is_connected());
  peer.request("desk.note", 1, 4097);
  EXPECT_FALSE(peer.next_but_received());
  EXPECT_TRUE(agent_.core()->sessions().is_gone(hand_));
  EXPECT_TRUE(desk_->noted().empty());
}

TEST_F(SessionWire, ReturnsOfCreditThatThePeerDoesNotAcknowledgeAreLimited) {
  AgentOptions options = over_tcp("node");
  options.limits.calls = 1;  // so each notification returns its credit
  Agent strict(options);
  strict.serve(desk_);
  Connection peer = chosen(strict);
  for (std::uint64_t first = 1; first <= 4096; first += 64) {
    for (std::uint64_t id = first; id < first + 64; ++id)
      peer.request("desk.note", 1, id, frame_flags::notify);
    for (int i = 0; i < 64; ++i) {
      const auto frame = peer.next_but_received();
      ASSERT_TRUE(frame);
      EXPECT_EQ(frame->prefix.kind, FrameKind::credit);
    }
  }
  EXPECT_FALSE(strict.core()->sessions().is_gone(hand_));
  peer.request("desk.note", 1, 4097, frame_flags::notify);
  EXPECT_FALSE(peer.next_but_received());
  EXPECT_TRUE(strict.core()->sessions().is_gone(hand_));
}

TEST_F(SessionWire, OnlyTheLatestIncarnationsThatTheJobHasLostAreRefused) {
  AgentCore& core = *agent_.core();
  core.forget(hand_, "its lease has expired");
  for (std::uint64_t n = 1; n < 1024; ++n) core.forget({"another", n}, "its lease has expired");
  Connection refused(agent_);
  auto frame = refused.next();
  ASSERT_TRUE(frame && frame->prefix.kind == FrameKind::goodbye);
  const auto reason = IncomingMessage(std::move(*frame), Limits{}).goodbye();
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind(), ErrorKind::lease_lost) << reason->what();
  refused.expect_end();
  core.forget({"another", 1024}, "its lease has expired");
  Connection accepted = chosen(agent_);
  accepted.request("desk.note", 10, 1);
  accepted.expect_reply(1);
}

TEST_F(SessionWire, CallsThatFailFastDoNotWaitForAnotherConnection) {
  std::optional<Connection> first(chosen(agent_));
  const Peer to_peer = agent_.peer("hand").with({.fail_fast = true});
  auto call = to_peer.call<&Desk::note>(1);
  auto notification = to_peer.notify<&Desk::note>(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(first->next()->prefix.kind, FrameKind::request);
  Connection second(agent_);
  eventually("both are open", [&] { return agent_.counts().connections == 2; });
  first.reset();
  EXPECT_EQ(test::kind_of([&] { return got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_EQ(test::kind_of([&] { got(std::move(notification)); }), ErrorKind::peer_lost);
  EXPECT_EQ(second.resumed().epoch, 1U);
  second.choose(2, 0);
  for (const FrameKind kind : {FrameKind::cancel, FrameKind::request, FrameKind::cancel}) {
    const auto frame = second.next_but_received();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->prefix.kind, kind) << "the call is not sent again";
  }
}

// The later incarnation seemed to have replaced it.
TEST_F(SessionWire, AnIncarnationThatOutlivesALaterOneIsReached) {
  Connection earlier = chosen(agent_);
  Connection later(agent_, "hand", 8);
  later.choose(1, 0);
  const auto expect_call = [&](const Peer& to_peer) {
    auto call = to_peer.call<&Desk::note>(1);
    const auto frame = earlier.next_but_received();
    ASSERT_TRUE(frame);
    EXPECT_EQ(frame->prefix.kind, FrameKind::request);
    earlier.send(reply(std::int64_t{1}, frame->prefix.call_id));
    EXPECT_EQ(got(std::move(call)), 1);
  };
  expect_call(agent_.peer("hand").only(hand_));
  later.send(test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind::unavailable, "it ends"))));
  later.expect_end();
  eventually("its session has ended", [&] { return !agent_.core()->sessions().knows(AgentId{"hand", 8}); });
  expect_call(agent_.peer("hand"));
}

TEST_F(SessionWire, ACallToOneIncarnationIsNotSentToAnother) {
  auto call = agent_.peer("hand").only(hand_).with({.wait_for_ready = true}).call<&Desk::note>(1);
  Connection other(agent_, "hand", 8);
  other.choose(1, 0);
  expect_error([&] { got(std::move(call)); }, ErrorKind::peer_lost, Execution::not_sent);
}

// Job::quiesce() compares this number.
TEST_F(SessionWire, TheRequestsOfAnEndedSessionAreCounted) {
  Connection peer = chosen(agent_);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
  const Sessions& sessions = agent_.core()->sessions();
  EXPECT_EQ(sessions.requests_with({"hand"}).received, 1U);
  agent_.core()->lose(hand_, Error(ErrorKind::peer_lost, "the test lost it"));
  EXPECT_EQ(sessions.requests_with({"hand"}).received, 0U);
  EXPECT_EQ(sessions.requests_with({}).ever, 1U);
}

// An agent that keeps at most 8 MiB of replies.
AgentOptions narrow() {
  AgentOptions options = over_tcp("node");
  options.heartbeat = {.interval = {}, .timeout = std::chrono::hours{1}};
  options.limits.in_flight = options.limits.in_flight_total = 8 << 20;
  return options;
}

TEST_F(SessionWire, APeerForWhichTooMuchIsKeptIsNotAwaited) {
  Agent agent(narrow());
  agent.serve<Page>();
  {
    Connection peer = chosen(agent);
    peer.request("page", 9 << 20, 1);
    peer.expect_reply(1);
  }
  eventually("its session has ended", [&] { return !agent.core()->sessions().knows(hand_); });
}

// Calls whose replies are awaited may depend on their streams.
TEST_F(SessionWire, UnacknowledgedRepliesDelayAllRequestsButThoseOfStreams) {
  Agent agent(narrow());
  agent.serve<Page>();
  Connection peer = chosen(agent);
  peer.request("page", 9 << 20, 1);
  peer.expect_reply(1);
  peer.request("page", 1, 2);
  peer.request("weft.stream.close", 1, 3);
  peer.expect_reply(3);
  peer.send(plain(FrameKind::received, 2));
  peer.expect_reply(2);
}

// The peer continues a session that this agent has ended, and that it no longer remembers.
TEST_F(SessionWire, ASessionThatThisAgentHasForgottenIsMadeAgain) {
  Connection peer(agent_);
  peer.resume({.session = 5, .epoch = 9, .accepted = 3});
  EXPECT_EQ(peer.resumed().session, 0U);
  peer.resume({.session = 6, .epoch = 1, .is_new = true});
  const ResumeInfo answer = peer.resumed();
  EXPECT_EQ(answer.session, 6U);
  EXPECT_EQ(answer.accepted, 0U);
  peer.request("desk.note", 10, 1);
  peer.expect_reply(1);
}

// The peer has ended its session with this agent, and makes another one.
TEST_F(SessionWire, ANewSessionEndsTheCallsOfTheOldOne) {
  const Peer to_peer = agent_.peer("hand");
  Connection peer = chosen(agent_);
  auto call = to_peer.call<&Desk::note>(1);
  EXPECT_EQ(peer.next()->prefix.kind, FrameKind::request);
  Connection next(agent_);
  next.resume({.session = 2, .epoch = 1, .is_new = true});
  EXPECT_EQ(next.resumed().session, 2U);
  expect_error([&] { got(std::move(call)); }, ErrorKind::lease_lost);
  EXPECT_TRUE(agent_.core()->sessions().is_gone(hand_)) << "for the layers";
  next.request("desk.note", 10, 1);
  next.expect_reply(1);
}

}  // namespace
}  // namespace weft::rpc::session_wire_test
