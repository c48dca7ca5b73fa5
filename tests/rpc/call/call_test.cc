// Typed calls: every kind of handler, the order of calls, signatures that differ between caller and callee,
// and the errors of handlers.
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>

#include "tests/support/cluster.h"

namespace weft::rpc::call_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

struct Reading {
  std::string place;
  double value = 0;
};
WEFT_CODEC(Reading, place, value)

// The service of agent "b". It has a handler of each kind, and most handlers call another peer.
class Station {
 public:
  explicit Station(Agent& own) : own_(own) {}

  std::string name() const { return own_.name(); }
  std::int64_t count() noexcept { return ++count_; }
  void log(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  Future<std::string> later(std::string text) {
    return Future<std::string>::made(std::string("later: ") + text);
  }
  Future<void> chained(std::string line) {
    return own_.peer("b").call<&Station::log>(line).then([](Result<void>&& done) { return std::move(done); });
  }
  // Makes a call to `b`, then runs twenty continuations.
  Future<std::int64_t> steps(std::int64_t from) {
    auto last = own_.peer("b").call<&Station::zero>().then(
        [from](Result<std::int64_t>&& zero) { return std::move(zero).get() + from; });
    for (int i = 0; i < 20; ++i)
      last = std::move(last).then([](Result<std::int64_t>&& step) { return std::move(step).get() + 1; });
    return last;
  }
  Task<std::int64_t> sum(std::vector<std::int64_t> values) {
    std::int64_t total = 0;
    for (const std::int64_t value : values) total += value + co_await own_.peer("b").call<&Station::zero>();
    co_return total;
  }
  Task<void> log_task(CallContext& call, std::string line) {
    co_await own_.peer("b").with(call).call<&Station::log>(call.peer().id.name + ": " + line);
  }
  asio::awaitable<std::string> awaitable(CallContext& call, std::string text) {
    asio::steady_timer pause(co_await asio::this_coro::executor, 1ms);
    co_await pause.async_wait(asio::use_awaitable);
    const Peer to_b = own_.peer("b").with(call);
    co_return text + " from " + co_await to_b.call<&Station::name>().async_get(asio::use_awaitable);
  }
  asio::awaitable<void> log_awaitable(std::string line) {
    log(std::move(line));
    co_return;
  }
  std::int64_t zero() const { return 0; }
  Reading warmer(const Reading& reading, double by) const { return {reading.place, reading.value + by}; }
  AgentId next_incarnation(AgentId id, const std::vector<AgentId>& others) const {
    return {id.name + std::to_string(others.size()),
            id.incarnation + (others.empty() ? 1 : others.back().incarnation)};
  }
  std::string caller(CallContext& call) const {
    return call.peer().id.name + " " + std::string(call.method()) + " " +
           (call.deadline() ? "in time" : "whenever");
  }

  using Service = rpc::Service<
      "station", Method<"name", &Station::name>, Method<"count", &Station::count>,
      Method<"log", &Station::log>, Method<"lines", &Station::lines>, Method<"later", &Station::later>,
      Method<"chained", &Station::chained>, Method<"steps", &Station::steps>, Method<"sum", &Station::sum>,
      Method<"log_task", &Station::log_task>, Method<"awaitable", &Station::awaitable>,
      Method<"log_awaitable", &Station::log_awaitable>, Method<"zero", &Station::zero, non_blocking>,
      Method<"warmer", &Station::warmer>, Method<"caller", &Station::caller>,
      Method<"next_incarnation", &Station::next_incarnation>>;

 private:
  Agent& own_;
  std::atomic<std::int64_t> count_{0};
  mutable std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
};

// The service of a base class of the served object.
struct Padding {
  virtual ~Padding() = default;
  std::int64_t padding = 17;
};
struct Base {
  std::int64_t answer() const { return number; }
  using Service = rpc::Service<"base", Method<"answer", &Base::answer>>;
  std::int64_t number = 42;
};
struct Derived : Padding, Base {};

// Versions of one method with different signatures. A caller that was built with one version calls a callee
// with another.
std::string greet(std::string name) { return "hello " + name; }
std::string greet_politely(std::string name, std::optional<std::string> title) {
  return "hello " + title.value_or("dear") + " " + name;
}
std::string greet_often(std::string name, std::int64_t times) { return name + std::to_string(times); }
std::string greet_by_number(std::int64_t number) { return std::to_string(number); }
std::int64_t greet_in_numbers(std::string name) { return static_cast<std::int64_t>(name.size()); }
void nothing() {}
using Greet = Function<"greet", &greet>;
using GreetPolitely = Function<"greet", &greet_politely>;
using GreetOften = Function<"greet", &greet_often>;
using GreetByNumber = Function<"greet", &greet_by_number>;
using GreetInNumbers = Function<"greet", &greet_in_numbers>;

class CallTest : public testing::Test {
 protected:
  CallTest() : cluster({}, {"a", "b"}) {
    station = std::make_shared<Station>(b);
    b.serve(station);
  }
  Cluster cluster;
  Agent& a = cluster["a"];
  Agent& b = cluster["b"];
  std::shared_ptr<Station> station;
  Peer to_b = cluster.peer("a", "b");
};

TEST_F(CallTest, ReachesEveryKindOfHandler) {
  EXPECT_EQ(got(to_b.call<&Station::name>()), "b") << "const";
  EXPECT_EQ(got(to_b.call<&Station::count>()), 1) << "noexcept";
  got(to_b.call<&Station::log>("value"));
  EXPECT_EQ(got(to_b.call<&Station::later>("x")), "later: x");
  got(to_b.call<&Station::chained>("future"));
  EXPECT_EQ(got(to_b.call<&Station::sum>(std::vector<std::int64_t>{1, 2, 3})), 6);
  got(to_b.call<&Station::log_task>("task"));
  EXPECT_EQ(got(to_b.call<&Station::awaitable>("news")), "news from b");
  got(to_b.call<&Station::log_awaitable>("awaitable"));
  EXPECT_EQ(got(to_b.call<&Station::zero>()), 0);
  EXPECT_EQ(station->lines(), (std::vector<std::string>{"value", "future", "a: task", "awaitable"}));

  b.serve<Greet>();
  EXPECT_EQ(got(to_b.call<Greet>("you")), "hello you");
}

TEST_F(CallTest, AHandlersFutureIsTheReplyOnceItCompletes) {
  EXPECT_EQ(got(to_b.call<&Station::steps>(2)), 22);
}

TEST_F(CallTest, ArgumentsAreConvertedAsInACall) {
  const Reading reading = got(to_b.call<&Station::warmer>(Reading{"roof", 20.5}, 2));
  EXPECT_EQ(reading.place, "roof");
  EXPECT_EQ(reading.value, 22.5);
  const std::string line = "an lvalue stays";
  got(to_b.call<&Station::log>(line));
  got(to_b.call<&Station::log>("a literal"));
  EXPECT_EQ(station->lines(), (std::vector<std::string>{line, "a literal"}));
}

TEST_F(CallTest, TheContextNamesCallerMethodAndDeadline) {
  EXPECT_EQ(got(to_b.call<&Station::caller>()), "a station.caller whenever");
  EXPECT_EQ(got(to_b.with(CallOptions{.timeout = 1h}).call<&Station::caller>()), "a station.caller in time");
  EXPECT_EQ(got(b.peer("b").call<&Station::caller>()), "b station.caller whenever");
}

TEST_F(CallTest, AnAgentsIdIsAnArgumentAndAResult) {
  EXPECT_EQ(got(to_b.call<&Station::next_incarnation>(AgentId{"c", 7}, std::vector<AgentId>{})),
            (AgentId{"c0", 8}));
  const AgentId large{"", ~std::uint64_t{0} - 9};
  EXPECT_EQ(got(to_b.call<&Station::next_incarnation>(large, std::vector{AgentId{"x", 1}, AgentId{"y", 9}})),
            (AgentId{"2", ~std::uint64_t{0}}));
}

TEST_F(CallTest, AnAgentIsAPeerOfItself) {
  const Peer self = b.peer("b");
  EXPECT_EQ(self.identity(), b.id());
  EXPECT_EQ(got(self.ready()), b.id());
  EXPECT_EQ(got(self.call<&Station::name>()), "b");
  self.notify<&Station::log>("noted");
  EXPECT_EQ(got(self.call<&Station::sum>(std::vector<std::int64_t>{4})), 4);
  test::eventually("the notification has run", [&] { return station->lines().size() == 1; });
}

TEST_F(CallTest, APeerThatOnlyConnectsIsCalledBackByItsName) {
  a.serve<Greet>();
  EXPECT_EQ(got(b.peer("a").call<Greet>("there")), "hello there");
}

TEST_F(CallTest, ServesTheMethodsOfABase) {
  b.serve(std::make_shared<Derived>());
  EXPECT_EQ(got(to_b.call<&Base::answer>()), 42) << "the base does not stand first in the object";
}

TEST_F(CallTest, NotificationsRunInOrderAndHaveNoReply) {
  b.serve<GreetByNumber>();
  to_b.notify<&Station::log>("1");
  to_b.notify<Greet>("a type that the handler does not take");
  to_b.notify<&Base::answer>();  // not served
  got(to_b.call<&Station::zero>());
  test::eventually("each has been served or refused", [&] {
    return station->lines().size() == 1 && cluster.logged("a notification from a failed").size() == 2;
  });
  EXPECT_EQ(cluster.logged("greet: argument 0: expected an integer").size(), 1U);
}

struct Recorder {
  void note(std::int64_t i) { came.push_back(i); }  // on one loop
  std::vector<std::int64_t> came;
  using Service = rpc::Service<"recorder", Method<"note", &Recorder::note, non_blocking>>;
};

TEST_F(CallTest, CallsOfOneCallerArriveInOrder) {
  const auto recorder = std::make_shared<Recorder>();
  b.serve(recorder);
  const Peer fresh = b.peer("b");  // nobody has connected yet
  std::vector<std::int64_t> expected;
  std::vector<Future<void>> calls;
  for (std::int64_t i = 0; i < 300; ++i) {
    expected.push_back(i);
    if (i % 3 == 0) {
      fresh.notify<&Recorder::note>(i);
    } else {
      calls.push_back(fresh.call<&Recorder::note>(i));
    }
  }
  got(when_all(std::move(calls)));
  EXPECT_EQ(recorder->came, expected);
}

// The caller makes one call on another thread, and then one on the peer's loop.
TEST_F(CallTest, CallsOfOneCallerFromSeveralThreadsArriveInOrder) {
  const auto recorder = std::make_shared<Recorder>();
  b.serve(recorder);
  const auto loop = a.core()->routes().to_name("b", {})->loop();
  got(to_b.call<&Recorder::note>(0));
  test::Event waits, made, done;
  std::vector<Future<void>> calls;
  loop->post([&] {
    waits.set();
    made.wait();
    calls.push_back(to_b.call<&Recorder::note>(2));
    done.set();
  });
  waits.wait();
  calls.push_back(to_b.call<&Recorder::note>(1));
  made.set();
  done.wait();
  got(when_all(std::move(calls)));
  EXPECT_EQ(recorder->came, (std::vector<std::int64_t>{0, 1, 2}));
}

TEST_F(CallTest, ManyThreadsMayShareAPeer) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 25; ++j) EXPECT_GT(got(to_b.call<&Station::count>()), 0);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(got(to_b.call<&Station::count>()), 101);
}

TEST_F(CallTest, AFutureMayBeDropped) {
  for (int i = 0; i < 10; ++i) (void)to_b.call<&Station::count>();
  test::eventually("all have run", [&] { return got(to_b.call<&Station::count>()) > 10; });
}

TEST_F(CallTest, AProgramsThreadRunsATask) {
  const auto twice = [](Peer peer) -> Task<std::int64_t> {
    const std::int64_t first = co_await peer.call<&Station::count>();
    co_return first + co_await peer.call<&Station::count>();
  };
  EXPECT_EQ(a.run(twice(to_b)), 3);
}

// --- Signatures that have drifted apart ---

TEST_F(CallTest, ATrailingOptionalParameterMayBeAdded) {
  b.serve<GreetPolitely>();
  EXPECT_EQ(got(to_b.call<Greet>("you")), "hello dear you") << "an old caller";
  EXPECT_EQ(got(to_b.call<GreetPolitely>("you", "Dr.")), "hello Dr. you");
  EXPECT_EQ(got(to_b.call<GreetPolitely>("you", std::nullopt)), "hello dear you");
}

TEST_F(CallTest, WrongArgumentsAreNamed) {
  b.serve<GreetOften>();
  const auto error = [&](auto call) {
    const auto found = test::error_of([&] { got(std::move(call)); });
    EXPECT_TRUE(found);
    EXPECT_EQ(found->kind(), ErrorKind::type_mismatch);
    return std::string(found->what());
  };
  EXPECT_EQ(error(to_b.call<Greet>("you")), "b: greet: argument 1 is missing: expected i64");
  EXPECT_EQ(error(to_b.call<GreetPolitely>("you", "Dr.")),
            "b: greet: argument 1: expected an integer, found variant");
  EXPECT_EQ(error(to_b.call<GreetByNumber>(7)), "b: greet: argument 0: expected text, found int");
  using TooMany = Function<"station.name", &greet>;
  EXPECT_EQ(error(to_b.call<TooMany>("you")), "b: station.name: expected 0 arguments, found 1");
}

TEST_F(CallTest, WrongResultsAreNamed) {
  b.serve<Greet>();
  expect_error([&] { got(to_b.call<GreetInNumbers>("you")); }, ErrorKind::type_mismatch,
               Execution::maybe_executed, whole("b: greet: result: expected an integer, found text"));
  using Silent = Function<"station.name", &nothing>;
  EXPECT_EQ(message_of([&] { got(to_b.call<Silent>()); }),
            "b: station.name: result: expected nothing, found text");
}

TEST_F(CallTest, AnUnservedMethodIsNotFound) {
  expect_error([&] { got(to_b.call<Greet>("you")); }, ErrorKind::not_found,
               whole("b: greet: no such method on this agent: it must serve() the method first"));
  b.serve<Greet>();
  EXPECT_EQ(got(to_b.call<Greet>("you")), "hello you") << "the connection lives";
}

// --- Handlers' errors ---

struct Moody {
  [[noreturn]] std::int64_t refuse() { throw Error(ErrorKind::permission_denied, "not today"); }
  [[noreturn]] std::int64_t fail() { throw std::out_of_range("index 7"); }
  [[noreturn]] void shout() { throw 42; }
  Future<std::int64_t> fail_before() { throw std::logic_error("before the future"); }
  Future<std::int64_t> fail_after() {
    Promise<std::int64_t> promise;
    auto future = promise.future();
    promise.fail(std::logic_error("in the future"));
    return future;
  }
  Future<std::int64_t> abandon() { return Promise<std::int64_t>().future(); }
  Future<std::int64_t> give_nothing() { return {}; }
  Task<std::int64_t> give_no_task() { return {}; }
  asio::awaitable<std::int64_t> give_no_awaitable() { return {}; }
  Task<std::int64_t> fail_in_task() {
    co_await Future<void>::made(Result<void>{});
    throw std::logic_error("in the task");
  }
  asio::awaitable<std::int64_t> fail_in_awaitable() {
    co_await asio::this_coro::executor;
    throw std::logic_error("in the awaitable");
  }
  // Fails with the error of a nested call.
  Task<std::int64_t> pass_on(CallContext& call, std::string of) {
    auto core = AgentCore::of(call);
    co_return co_await Peer(core, core->routes().to_name(of)).with(call).call<&Moody::refuse>();
  }
  using Service = rpc::Service<
      "moody", Method<"refuse", &Moody::refuse>, Method<"fail", &Moody::fail>, Method<"shout", &Moody::shout>,
      Method<"fail_before", &Moody::fail_before>, Method<"fail_after", &Moody::fail_after>,
      Method<"give_nothing", &Moody::give_nothing>, Method<"give_no_task", &Moody::give_no_task>,
      Method<"give_no_awaitable", &Moody::give_no_awaitable>, Method<"abandon", &Moody::abandon>,
      Method<"fail_in_task", &Moody::fail_in_task>, Method<"fail_in_awaitable", &Moody::fail_in_awaitable>,
      Method<"pass_on", &Moody::pass_on>>;
};

class HandlerErrorTest : public CallTest {
 protected:
  HandlerErrorTest() {
    a.serve(std::make_shared<Moody>());
    b.serve(std::make_shared<Moody>());
  }
  struct Expected {
    ErrorKind kind;
    std::string method, type, detail;
  };
  template <class T>
  static void expect(Future<T> future, const Expected& expected) {
    try {
      got(std::move(future));
      ADD_FAILURE() << expected.method << " returned";
    } catch (const RemoteError& error) {
      EXPECT_EQ(error.kind(), expected.kind);
      EXPECT_EQ(error.worker(), "b");
      EXPECT_EQ(error.method(), expected.method);
      EXPECT_EQ(error.type(), expected.type);
      EXPECT_EQ(error.detail(), expected.detail);
      EXPECT_EQ(error.execution(), Execution::maybe_executed);
      EXPECT_EQ(std::string(error.what()), "b: " + expected.method + ": " +
                                               (expected.type.empty() ? "" : expected.type + ": ") +
                                               expected.detail);
    }
  }
};

TEST_F(HandlerErrorTest, ArriveWithKindWorkerMethodAndType) {
  expect(to_b.call<&Moody::refuse>(), {ErrorKind::permission_denied, "moody.refuse", "", "not today"});
  expect(to_b.call<&Moody::fail>(),
         {ErrorKind::handler_failed, "moody.fail", "std::out_of_range", "index 7"});
  expect(to_b.call<&Moody::shout>(),
         {ErrorKind::handler_failed, "moody.shout", "", "an exception that is not a std::exception"});
}

TEST_F(HandlerErrorTest, MayAriseInFuturesAndTasks) {
  expect(to_b.call<&Moody::fail_before>(),
         {ErrorKind::handler_failed, "moody.fail_before", "std::logic_error", "before the future"});
  expect(to_b.call<&Moody::fail_after>(),
         {ErrorKind::handler_failed, "moody.fail_after", "std::logic_error", "in the future"});
  expect(to_b.call<&Moody::fail_in_task>(),
         {ErrorKind::handler_failed, "moody.fail_in_task", "std::logic_error", "in the task"});
  expect(to_b.call<&Moody::fail_in_awaitable>(),
         {ErrorKind::handler_failed, "moody.fail_in_awaitable", "std::logic_error", "in the awaitable"});
  expect(to_b.call<&Moody::abandon>(),
         {ErrorKind::aborted, "moody.abandon", "", "the promise was destroyed without a result"});
}

TEST_F(HandlerErrorTest, AHandlerThatReturnsAnEmptyFutureOrCoroutineFails) {
  const std::string text =
      "the handler returned an empty future or coroutine: it was moved from or already used";
  expect(to_b.call<&Moody::give_nothing>(), {ErrorKind::handler_failed, "moody.give_nothing", "", text});
  expect(to_b.call<&Moody::give_no_task>(), {ErrorKind::handler_failed, "moody.give_no_task", "", text});
  expect(to_b.call<&Moody::give_no_awaitable>(),
         {ErrorKind::handler_failed, "moody.give_no_awaitable", "", text});
}

TEST_F(HandlerErrorTest, OfANestedCallNameEveryWorkerOnItsPath) {
  expect(to_b.call<&Moody::pass_on>("a"),
         {ErrorKind::permission_denied, "moody.pass_on", "", "a: moody.refuse: not today"});
}

TEST_F(HandlerErrorTest, OfNotificationsAreLoggedByTheCallee) {
  to_b.notify<&Moody::fail>();
  test::eventually("the failure is logged", [&] {
    const auto lines = cluster.logged("a notification from a failed: moody.fail: index 7");
    return lines.size() == 1 && lines.front().agent == "b" && lines.front().level == LogLevel::warning;
  });
  const auto fields = cluster.logged("a notification from a failed").front().fields;
  EXPECT_EQ(fields.at("peer"), "a");
  EXPECT_EQ(fields.at("method"), "moody.fail");
  EXPECT_EQ(fields.at("kind"), "handler_failed");
  EXPECT_FALSE(fields.at("call").empty());
}

}  // namespace
}  // namespace weft::rpc::call_test
