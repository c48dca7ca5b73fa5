// The means by which layers above RPC take part in an agent's calls: sections, parts, hooks and contexts.
#include "tests/support/cluster.h"

namespace weft::rpc::hooks_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

// Records events in order.
class Record {
 public:
  void add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool has(const std::string& line) const {
    const auto all = lines();
    return std::find(all.begin(), all.end(), line) != all.end();
  }

 private:
  mutable std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
};
using Lines = std::vector<std::string>;

std::string text_in(const ValueReader& reader) { return Codec<std::string>::decode(reader); }

// Writes a note next to the arguments of a call, and reads the note of the reply.
class NotePart final : public CallPart {
 public:
  NotePart(std::string text, bool required, Record* record)
      : text_(std::move(text)), required_(required), record_(record) {}
  void write(OutgoingMessage& message) override {
    Codec<std::string>::encode(message.section("note", required_), text_);
  }
  void read(IncomingMessage& message) override {
    if (const auto answer = message.section("answer")) record_->add("answer: " + text_in(*answer));
  }
  void ended(const std::exception_ptr& error) override {
    std::string how = "well";
    try {
      if (error != nullptr) std::rethrow_exception(error);
    } catch (const Error& failure) {
      how = to_string(failure.kind());
    } catch (const std::exception& other) {
      how = other.what();
    }
    record_->add("ended " + how);
  }

 private:
  std::string text_;
  bool required_;
  Record* record_;
};

struct Note final : CallModifier {
  Note(std::string t, Record& r, bool q = true) : text(std::move(t)), record(&r), required(q) {}
  void apply(OutgoingCall& call) const override {
    call.add_part(std::make_shared<NotePart>(text, required, record));
  }
  std::string text;
  Record* record;
  bool required;
};

// At the callee: reads the note where the handler runs, and adds a note to the reply.
class AnswerPart final : public CallPart {
 public:
  explicit AnswerPart(Record* record) : record_(record) {}
  void read(IncomingMessage& message) override { record_->add("read " + text_in(*message.section("note"))); }
  void write(OutgoingMessage& message) override {
    Codec<std::string>::encode(message.section("answer", false), "noted");
  }
  void ended(const std::exception_ptr&) override { record_->add("the reply was not sent"); }

 private:
  Record* record_;
};

struct Noted {
  std::string text;
};

// A layer with a hook under a name.
class NoteHook final : public CallHook {
 public:
  NoteHook(std::string name, Record& record) : name_(std::move(name)), record_(record) {}

  bool knows(std::string_view section) const override { return section == "note"; }
  void incoming(std::shared_ptr<IncomingCall> call, Callback next) override {
    const std::string text = text_in(*call->message().section("note"));
    record_.add(name_ + " incoming " + text);
    if (text == "throw") throw Error(ErrorKind::permission_denied, "no such notes");
    if (text == "fail")
      return call->fail(std::make_exception_ptr(Error(ErrorKind::failed_precondition, "not now")));
    if (text == "drop") return;
    call->slots().put(std::make_shared<Noted>(Noted{text}));
    if (text == "answer") call->add_part(std::make_shared<AnswerPart>(&record_));
    if (text != "later") return next();
    std::lock_guard lock(mutex_);
    waiting_ = std::move(next);
  }
  void replied(IncomingMessage& message, const AgentId& from) override {
    record_.add(name_ + " replied by " + from.name + (message.section("answer") ? " with an answer" : ""));
  }
  void nested(CallContext& parent, OutgoingCall& child) override {
    if (const Noted* noted = parent.slots().find<Noted>())
      child.add_part(std::make_shared<NotePart>(noted->text + "!", true, &record_));
  }
  void peer_gone(const AgentId& peer, const Error& reason) override {
    record_.add(name_ + " gone " + peer.name + " " + std::string(to_string(reason.kind())));
  }
  Future<void> leaving() override {
    record_.add(name_ + " leaving");
    return hold_leaving_ ? left_.future() : Future<void>::made(Result<void>{});
  }
  Future<void> left() override {
    record_.add(name_ + " left");
    return hold_left_ ? membership_.future() : CallHook::left();
  }
  void shut_down() override {
    record_.add(name_ + " shut down");
    if (at_shut_down) at_shut_down();
  }

  bool has_a_call() const {  // that waits for go_on()
    std::lock_guard lock(mutex_);
    return static_cast<bool>(waiting_);
  }
  void go_on() {
    std::unique_lock lock(mutex_);
    Callback next = std::move(waiting_);
    lock.unlock();
    next();
  }
  void hold_leaving() { hold_leaving_ = true; }
  void let_leave() { left_.complete(Result<void>{}); }
  void hold_left() { hold_left_ = true; }
  void fail_left() { membership_.fail(Error(ErrorKind::unavailable, "the store is gone")); }

  std::function<void()> at_shut_down;  // assigned before the agent shuts down

 private:
  const std::string name_;
  Record& record_;
  mutable std::mutex mutex_;  // guards waiting_
  Callback waiting_;
  bool hold_leaving_ = false, hold_left_ = false;
  Promise<void> left_, membership_;
};

class Desk {
 public:
  Desk(Agent& own, Record& record) : own_(own), record_(record) {}
  std::string note(CallContext& call) const {
    const Noted* noted = call.slots().find<Noted>();
    return noted == nullptr ? "none" : noted->text;
  }
  Task<std::string> note_at(CallContext& call, std::string peer, bool handed_on) {
    Peer to = own_.peer(peer);
    if (handed_on) to = to.with(call);
    co_return co_await to.call<&Desk::note>();
  }
  void value() { record_.add("value"); }
  [[noreturn]] void fail() {
    record_.add("fail");
    throw std::runtime_error("failed");
  }
  Future<void> future() {
    auto waits = waited_.future();
    record_.add("future");
    return waits;
  }
  Task<void> task() {
    record_.add("before");
    co_await waited_.future();
    record_.add("after");
  }
  void release() { std::exchange(waited_, Promise<void>()).complete(Result<void>{}); }
  void give_up() { std::exchange(waited_, Promise<void>()).fail(Error(ErrorKind::not_found, "given up")); }
  using Service = rpc::Service<"desk", Method<"note", &Desk::note>, Method<"note_at", &Desk::note_at>,
                               Method<"value", &Desk::value>, Method<"fail", &Desk::fail>,
                               Method<"future", &Desk::future>, Method<"task", &Desk::task>>;

 private:
  Agent& own_;
  Record& record_;
  Promise<void> waited_;
};

// A type whose encoding fails.
struct Unwritable {};
}  // namespace
}  // namespace weft::rpc::hooks_test

namespace weft::rpc {
template <>
struct Codec<hooks_test::Unwritable> {
  static void describe(TypeText& text) { text << "unwritable"; }
  static void encode(ValueWriter, const hooks_test::Unwritable&) {
    throw Error(ErrorKind::invalid_argument, "unwritable");
  }
  static hooks_test::Unwritable decode(ValueReader) { return {}; }
};
}  // namespace weft::rpc

namespace weft::rpc::hooks_test {
namespace {

void take(Unwritable) {}
using Take = Function<"take", &take>;

class HooksTest : public testing::Test {
 protected:
  HooksTest() : cluster({}) {
    add("a", {});
    add("b", {layer("low", 0), layer("high", 1)});
    add("c", {layer("at c", 2)});
    add("plain", {});
    cluster.acquaint();
    to_b.emplace(cluster.peer("a", "b"));
  }
  Layer layer(const std::string& name, std::size_t at) {
    hooks[at] = std::make_shared<NoteHook>(name, record);
    return [hook = hooks[at]](Agent& agent) { agent.core()->hooks().add(hook); };
  }
  void add(const std::string& name, Layers layers) {
    Agent& agent = cluster.add(name, std::move(layers));
    desks[name] = std::make_shared<Desk>(agent, record);
    agent.serve(desks[name]);
  }
  Note note(const std::string& text, bool required = true) { return Note(text, sent, required); }

  Record record, sent;  // of the callees, of the callers
  std::array<std::shared_ptr<NoteHook>, 3> hooks;
  Cluster cluster;
  std::map<std::string, std::shared_ptr<Desk>> desks;
  std::optional<Peer> to_b;
};

TEST_F(HooksTest, AreCalledFromTheHighestLayerDown) {
  EXPECT_EQ(got(to_b->call<&Desk::note>(note("x"))), "x");
  EXPECT_EQ(record.lines(), (Lines{"high incoming x", "low incoming x"}));
  EXPECT_EQ(got(to_b->call<&Desk::note>()), "none");
  EXPECT_EQ(record.lines().size(), 2U) << "nobody is asked about a call without sections";
}

TEST_F(HooksTest, AnAgentWithoutTheLayerRefuses) {
  const Peer plain = cluster.peer("a", "plain");
  expect_error([&] { got(plain.call<&Desk::note>(note("x"))); }, ErrorKind::unsupported,
               whole("plain: desk.note: the call needs a layer that this agent was created without: note"));
  EXPECT_EQ(sent.lines(), Lines{"ended unsupported"});
  EXPECT_EQ(got(plain.call<&Desk::note>(note("x", false))), "none") << "what is not required is ignored";
}

TEST_F(HooksTest, MayDelayACall) {
  auto call = to_b->call<&Desk::note>(note("later"));
  eventually("the first hook has it", [&] { return hooks[1]->has_a_call(); });
  auto drained = cluster["b"].drain(1h);
  EXPECT_FALSE(call.ready());
  EXPECT_FALSE(drained.ready());
  hooks[1]->go_on();  // on this thread
  hooks[0]->go_on();
  EXPECT_EQ(got(std::move(call)), "later");
  got(std::move(drained));
}

TEST_F(HooksTest, MayFailACall) {
  const auto ended = [&](const std::string& text) {
    const auto error = test::error_of([&] { got(to_b->call<&Desk::value>(note(text))); });
    return error ? std::string(error->what()) : "";
  };
  EXPECT_EQ(ended("fail"), "b: desk.value: not now");
  EXPECT_EQ(ended("throw"), "b: desk.value: no such notes");
  EXPECT_EQ(ended("drop"), "b: desk.value: the handler dropped the call without a reply");
  EXPECT_FALSE(record.has("value"));
  EXPECT_FALSE(record.has("low incoming fail")) << "the next one is not asked";
}

TEST_F(HooksTest, SeeRepliesWithSections) {
  add("caller",
      {[this](Agent& agent) { agent.core()->hooks().add(std::make_shared<NoteHook>("caller", record)); }});
  EXPECT_EQ(got(cluster.peer("caller", "b").call<&Desk::note>(note("answer"))), "answer");
  EXPECT_TRUE(record.has("caller replied by b with an answer"));
  EXPECT_TRUE(record.has("read answer"));
  EXPECT_EQ(sent.lines(), (Lines{"answer: noted", "ended well"}));
}

TEST_F(HooksTest, ApplyToNestedCalls) {
  EXPECT_EQ(got(to_b->call<&Desk::note_at>(note("x"), "c", true)), "x!");
  EXPECT_EQ(got(to_b->call<&Desk::note_at>(note("x"), "c", false)), "none");
}

TEST_F(HooksTest, AreNotifiedOfALostPeer) {
  got(cluster.peer("b", "c").ready());  // a second link
  cluster.end("c");
  eventually("b's layers have heard", [&] { return record.has("high gone c peer_lost"); });
  got(cluster["plain"].drain(1h));
  cluster.end("plain");
  eventually("of an orderly end too", [&] { return record.has("high gone plain shut_down"); });
  const auto lines = record.lines();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "low gone c peer_lost"), 1) << "once, not for each link";
}

TEST_F(HooksTest, LeaveFromTheHighestToTheLowestBeforeTheAgentLeaves) {
  hooks[1]->hold_leaving();
  auto left = cluster["b"].leave();
  eventually("the highest layer is asked", [&] { return record.has("high leaving"); });
  EXPECT_EQ(got(to_b->call<&Desk::note>()), "none") << "it serves until they are ready";
  EXPECT_EQ(record.lines(), Lines{"high leaving"});
  EXPECT_FALSE(left.ready());
  hooks[1]->let_leave();
  got(std::move(left));
  EXPECT_TRUE(record.has("low leaving"));
  cluster.end("b");
  const auto lines = record.lines();
  const auto high = std::find(lines.begin(), lines.end(), "high shut down");
  EXPECT_NE(std::find(high, lines.end(), "low shut down"), lines.end());
}

TEST_F(HooksTest, EndMembershipsAfterTheLayersLeaveAndBeforeTheAgentDrains) {
  hooks[0]->hold_left();
  auto left = cluster["b"].leave();
  eventually("the memberships end", [&] { return record.has("high left"); });
  EXPECT_EQ(record.lines(), (Lines{"high leaving", "low leaving", "low left", "high left"}));
  EXPECT_EQ(got(to_b->call<&Desk::note>()), "none") << "the agent does not drain yet";
  EXPECT_FALSE(left.ready());
  hooks[0]->fail_left();
  EXPECT_EQ(kind_of([&] { got(std::move(left)); }), ErrorKind::unavailable);
  EXPECT_EQ(kind_of([&] { got(to_b->call<&Desk::note>()); }), ErrorKind::shut_down) << "it has drained";
}

TEST_F(HooksTest, ErrorsOfAnAgentThatShutsDownDoNotHideItsLoss) {
  Future<void> call = to_b->call<&Desk::future>();
  eventually("the handler waits", [&] { return record.has("future"); });
  hooks[1]->at_shut_down = [&, loop = cluster["b"].core()->pick_loop()] {
    desks["b"]->give_up();  // as a layer that drops the objects of its calls
    Event sent;
    loop->post([&] { sent.set(); });
    sent.wait();
  };
  cluster.end("b");
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost);
}

// --- Parts ---

TEST_F(HooksTest, PartsAreDestroyedWithTheirCall) {
  got(to_b->call<&Desk::value>(note("x")));
  EXPECT_EQ(kind_of([&] { got(to_b->call<&Desk::fail>(note("x"))); }), ErrorKind::handler_failed);
  EXPECT_EQ(kind_of([&] { got(cluster["a"].peer("nobody").call<&Desk::value>(note("x"))); }),
            ErrorKind::not_found);
  to_b->notify<&Desk::value>(note("x"));
  eventually("the notification has left", [&] { return sent.lines().size() == 4; });
  EXPECT_EQ(sent.lines(), (Lines{"ended well", "ended handler_failed", "ended not_found", "ended well"}));
}

TEST_F(HooksTest, PartsAreDestroyedIfTheCallIsNeverMade) {
  EXPECT_EQ(kind_of([&] { (void)to_b->call<Take>(note("x"), Unwritable{}); }), ErrorKind::invalid_argument)
      << "an argument that cannot be encoded is the caller's error, at once";
  EXPECT_EQ(sent.lines(), Lines{"ended aborted"});
  EXPECT_EQ(got(to_b->call<&Desk::note>()), "none");
}

TEST_F(HooksTest, PartsOfACalleeAreNotifiedOfAnUnsentReply) {
  add("terse",
      {[this](Agent& agent) { agent.core()->hooks().add(std::make_shared<NoteHook>("terse", record)); }});
  struct Longwinded {
    Unwritable talk() const { return {}; }
    using Service = rpc::Service<"longwinded", Method<"talk", &Longwinded::talk>>;
  };
  cluster["terse"].serve(std::make_shared<Longwinded>());
  EXPECT_EQ(kind_of([&] { got(cluster.peer("a", "terse").call<&Longwinded::talk>(note("answer"))); }),
            ErrorKind::invalid_argument);
  EXPECT_TRUE(record.has("the reply was not sent"));
}

// --- Contexts ---

class RecordedContext final : public ContextSwitch {
 public:
  RecordedContext(std::string name, Record& record) : name_(std::move(name)), record_(record) {}
  void enter() override { record_.add("enter " + name_); }
  void leave() override { record_.add("leave " + name_); }

 private:
  std::string name_;
  Record& record_;
};

class ContextsTest : public testing::Test {
 protected:
  ContextsTest() : cluster({}, {"a"}) {
    const auto layer = [this](const std::string& name) {
      return [this, name](Agent& agent) {
        agent.core()->hooks().add_context([this, name](IncomingCall& call) -> std::unique_ptr<ContextSwitch> {
          if (call.method() == "desk.note") return nullptr;
          return std::make_unique<RecordedContext>(name, record);
        });
      };
    };
    Agent& b = cluster.add("b", {layer("outer"), layer("inner")});
    desk = std::make_shared<Desk>(b, record);
    b.serve(desk);
    to_b.emplace(cluster.peer("a", "b"));
  }
  Record record;
  Cluster cluster;
  std::shared_ptr<Desk> desk;
  std::optional<Peer> to_b;
};

TEST_F(ContextsTest, SurroundAHandler) {
  got(to_b->call<&Desk::value>());
  EXPECT_EQ(record.lines(), (Lines{"enter outer", "enter inner", "value", "leave inner", "leave outer"}));
  EXPECT_EQ(got(to_b->call<&Desk::note>()), "none");
  EXPECT_EQ(record.lines().size(), 5U) << "a call need not have one";
}

TEST_F(ContextsTest, AreLeftByAnException) {
  EXPECT_TRUE(test::error_of([&] { got(to_b->call<&Desk::fail>()); }));
  EXPECT_EQ(record.lines(), (Lines{"enter outer", "enter inner", "fail", "leave inner", "leave outer"}));
}

TEST_F(ContextsTest, AreLeftWhenAHandlerReturnsAFuture) {
  auto call = to_b->call<&Desk::future>();
  eventually("it has been left", [&] { return record.lines().size() == 5; });
  EXPECT_EQ(record.lines(), (Lines{"enter outer", "enter inner", "future", "leave inner", "leave outer"}));
  desk->release();
  got(std::move(call));
  EXPECT_EQ(record.lines().size(), 5U);
}

TEST_F(ContextsTest, AreLeftWhenATaskSuspends) {
  auto call = to_b->call<&Desk::task>();
  eventually("it waits", [&] { return record.lines().size() == 5; });
  EXPECT_EQ(record.lines(), (Lines{"enter outer", "enter inner", "before", "leave inner", "leave outer"}));
  desk->release();
  got(std::move(call));
  const auto lines = record.lines();
  EXPECT_EQ(Lines(lines.begin() + 5, lines.end()),
            (Lines{"enter outer", "enter inner", "after", "leave inner", "leave outer"}));
}

}  // namespace
}  // namespace weft::rpc::hooks_test
