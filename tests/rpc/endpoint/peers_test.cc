// Peers: names and addresses, incarnations, losses, and links that both sides open at the same time. Also
// agents on the program's own io_context.
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>

#include "tests/support/cluster.h"
#include "tests/support/loopback.h"

namespace weft::rpc::peers_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Greeter {
 public:
  explicit Greeter(Agent& own) : own_(own) {}

  std::string greet(std::string name) const { return own_.name() + " greets " + name; }
  Future<void> hang() {
    began.set();
    std::lock_guard lock(mutex_);
    hanging_.emplace_back();
    return hanging_.back().future();
  }
  // A programming error: the handler blocks a thread that the agent needs.
  std::string wait_for(std::string peer) const {
    own_.peer(peer).call<&Greeter::hang>().get();
    return "never";
  }
  Task<std::string> ask(std::string peer) const {
    co_return co_await own_.peer(peer).call<&Greeter::greet>(own_.name());
  }

  using Service = rpc::Service<"greeter", Method<"greet", &Greeter::greet>, Method<"hang", &Greeter::hang>,
                               Method<"wait_for", &Greeter::wait_for>, Method<"ask", &Greeter::ask>>;
  Event began;

 private:
  Agent& own_;
  std::mutex mutex_;  // guards hanging_
  std::vector<Promise<void>> hanging_;
};

void nothing() {}
using Nothing = Function<"nothing", &nothing>;  // nobody serves it

std::shared_ptr<Greeter> serve_greeter(Agent& agent) {
  auto greeter = std::make_shared<Greeter>(agent);
  agent.serve(greeter);
  return greeter;
}

// The tests run over each transport, on one loop and on several.
struct Way {
  bool tcp;
  std::size_t loops;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << (way.tcp ? "tcp" : "in process") << " on " << way.loops << " loops";
}

class PeersTest : public testing::TestWithParam<Way> {
 protected:
  PeersTest()
      : cluster({.tcp = GetParam().tcp, .adjust = [](AgentOptions& options) {
                   options.loops = GetParam().loops;
                   // Some agents restart at their previous address.
                   if (GetParam().tcp) options.listen = {"tcp://" + test::own_loopback() + ":0"};
                 }}) {
    for (const char* name : {"a", "b"}) start(name);
  }
  void start(const std::string& name) { greeters[name] = serve_greeter(cluster.add(name)); }

  Cluster cluster;
  std::map<std::string, std::shared_ptr<Greeter>> greeters;
};
INSTANTIATE_TEST_SUITE_P(Ways, PeersTest,
                         testing::Values(Way{false, 1}, Way{false, 3}, Way{true, 1}, Way{true, 3}),
                         [](const auto& info) {
                           return std::string(info.param.tcp ? "tcp" : "inproc") +
                                  std::to_string(info.param.loops);
                         });

TEST_P(PeersTest, AreReachedByAddressAndThenByName) {
  const std::string address = cluster["b"].addresses().front();
  const Peer peer = cluster["a"].connect(address);
  EXPECT_EQ(peer.name(), address);
  EXPECT_EQ(peer.identity(), std::nullopt) << "nothing is known before the first call";
  EXPECT_EQ(got(peer.ready()), cluster["b"].id());
  EXPECT_EQ(peer.identity(), cluster["b"].id());
  EXPECT_EQ(got(peer.call<&Greeter::greet>("a")), "b greets a");
  EXPECT_EQ(got(cluster["a"].peer("b").call<&Greeter::greet>("a")), "b greets a");
  EXPECT_EQ(got(cluster["b"].peer("a").call<&Greeter::greet>("b")), "a greets b") << "and back";
}

TEST_P(PeersTest, OfAnUnknownNameAreNotFound) {
  expect_error([&] { got(cluster["a"].peer("b").call<&Greeter::greet>("a")); }, ErrorKind::not_found,
               Execution::not_sent, test::whole("b: greeter.greet: this agent knows no address of 'b'"));
  cluster.peer("a", "b");
  EXPECT_EQ(got(cluster["a"].peer("b").call<&Greeter::greet>("a")), "b greets a");
}

TEST_P(PeersTest, ThatDieFailTheCallsInFlight) {
  const Peer peer = cluster.peer("a", "b");
  auto call = peer.call<&Greeter::hang>();
  greeters["b"]->began.wait();
  cluster.end("b");
  expect_error([&] { got(std::move(call)); }, ErrorKind::peer_lost, Execution::maybe_executed,
               ": greeter.hang: ");

  expect_error([&] { got(peer.call<&Greeter::greet>("a")); }, ErrorKind::unavailable, Execution::not_sent);
}

TEST_P(PeersTest, MayReturnAsAnotherIncarnation) {
  const Peer peer = cluster.peer("a", "b");
  const AgentId before = *peer.identity();
  const Peer only = peer.only(before);
  EXPECT_EQ(got(only.call<&Greeter::greet>("a")), "b greets a");
  AgentOptions options{.name = "b", .listen = cluster["b"].addresses()};
  cluster.end("b");
  // The new incarnation listens at the old address. An in-process name needs the cluster's network.
  std::unique_ptr<Agent> again;
  if (GetParam().tcp) {
    again = std::make_unique<Agent>(options);
    serve_greeter(*again);
  } else {
    start("b");
  }
  test::eventually("it is reached again",
                   [&] { return !kind_of([&] { got(peer.call<&Greeter::greet>("a")); }).has_value(); });
  EXPECT_NE(*peer.identity(), before);
  expect_error([&] { got(only.call<&Greeter::greet>("a")); }, ErrorKind::peer_lost, Execution::not_sent,
               to_string(before) + " is gone");
  EXPECT_EQ(got(peer.only(*peer.identity()).call<&Greeter::greet>("a")), "b greets a");
}

// Both sides connect before either has received a connection. There may be two links, and calls work over
// both.
TEST_P(PeersTest, MayDialEachOtherAtOnce) {
  for (int round = 0; round < 10; ++round) {
    const std::string left = "left" + std::to_string(round), right = "right" + std::to_string(round);
    start(left);
    start(right);
    std::vector<Future<std::string>> there, back;
    {
      const HeldLoop hold_left(cluster[left]), hold_right(cluster[right]);
      const Peer to_right = cluster[left].connect(cluster[right].addresses().front());
      const Peer to_left = cluster[right].connect(cluster[left].addresses().front());
      for (int i = 0; i < 5; ++i) {
        there.push_back(to_right.call<&Greeter::greet>(left));
        back.push_back(to_left.call<&Greeter::greet>(right));
      }
    }
    for (const auto& text : got(when_all(std::move(there)))) EXPECT_EQ(text, right + " greets " + left);
    for (const auto& text : got(when_all(std::move(back)))) EXPECT_EQ(text, left + " greets " + right);
    EXPECT_EQ(got(cluster[left].peer(right).call<&Greeter::greet>("you")), right + " greets you");
    EXPECT_EQ(got(cluster[right].peer(left).call<&Greeter::greet>("you")), left + " greets you");
    cluster.end(left);
    cluster.end(right);
  }
}

TEST_P(PeersTest, WithTwoLinksMayLoseEither) {
  for (const std::string survivor : {"a", "b"}) {
    // a and b have two links, of which each side opened one.
    const std::string other = survivor == "a" ? "b" : "a";
    const std::string at = cluster[other].addresses().front();
    got(cluster[survivor].connect(at).ready());
    got(cluster[other].connect(cluster[survivor].addresses().front()).ready());
    const Peer by_name = cluster[survivor].peer(other), by_address = cluster[survivor].connect(at);
    cluster.end(other);
    for (const Peer& peer : {by_name, by_address})
      test::eventually("it is known to be gone", [&] {
        return kind_of([&] { got(peer.call<&Greeter::greet>("you")); }) == ErrorKind::unavailable;
      });
    start(other);
    if (GetParam().tcp) got(cluster[survivor].connect(cluster[other].addresses().front()).ready());
    test::eventually("its new life is reached by its name", [&] {
      return !kind_of([&] { got(by_name.call<&Greeter::greet>("you")); }).has_value();
    });
  }
}

TEST_P(PeersTest, MayAllCallEachOther) {
  const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
  for (const char* name : {"c", "d", "e"}) start(name);
  cluster.acquaint();
  std::vector<Future<std::string>> answers;
  for (int i = 0; i < 5; ++i)
    for (const auto& from : names)
      for (const auto& to : names) answers.push_back(cluster[from].peer(to).call<&Greeter::greet>(from));
  std::size_t i = 0;
  const auto texts = got(when_all(std::move(answers)));
  for (int round = 0; round < 5; ++round)
    for (const auto& from : names)
      for (const auto& to : names) EXPECT_EQ(texts.at(i++), to + " greets " + from);
}

TEST_P(PeersTest, RefuseABlockingWaitOnAnAgentsThread) {
  const Peer peer = cluster.peer("a", "b");
  expect_error([&] { got(peer.call<&Greeter::wait_for>("a")); }, ErrorKind::failed_precondition,
               "co_await the future or use then()");
  EXPECT_EQ(got(peer.call<&Greeter::ask>("a")), "a greets b") << "the way to do it";
}

TEST(Peers, WithInvalidAddressesFail) {
  Cluster cluster({}, {"a"});
  const auto to = [&](const std::string& address) {
    return test::error_of([&] { got(cluster["a"].connect(address).call<&Greeter::greet>("you")); })->kind();
  };
  EXPECT_EQ(to("inproc://nobody"), ErrorKind::unavailable);
  EXPECT_EQ(to("carrier-pigeon://coop"), ErrorKind::invalid_argument);
  EXPECT_EQ(to("tcp://127.0.0.1"), ErrorKind::invalid_argument);
  std::string nobody;
  {
    Agent probe(AgentOptions{.name = "probe", .listen = {"tcp://" + test::own_loopback() + ":0"}});
    nobody = probe.addresses().front();
  }
  EXPECT_EQ(to(nobody), ErrorKind::unavailable);
  Agent alone(AgentOptions{.name = "alone", .handler_threads = 1});
  EXPECT_EQ(kind_of([&] { got(alone.connect("inproc://a").call<&Greeter::greet>("you")); }),
            ErrorKind::unsupported)
      << "it has no in-process network";
  EXPECT_EQ(kind_of([] { Agent agent(AgentOptions{}); }), ErrorKind::invalid_argument) << "without a name";
  EXPECT_EQ(kind_of([] { Agent(AgentOptions{.name = "x", .listen = {"tcp://0.0.0.0:0"}}); }),
            ErrorKind::permission_denied);
}

TEST(Peers, AnAgentWithoutAJobLeaves) {
  Agent alone(AgentOptions{.name = "alone", .handler_threads = 1});
  got(alone.leave());
}

// --- On the program's io_context ---

class OwnContext : public testing::Test {
 protected:
  static AgentOptions named(const char* name) {
    return {.name = name, .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1};
  }
  OwnContext() {
    serve_greeter(theirs);
    serve_greeter(*mine);
  }
  std::string address() const { return theirs.addresses().front(); }

  asio::io_context context;
  Agent theirs{named("theirs")};
  std::unique_ptr<Agent> mine = std::make_unique<Agent>(context, named("mine"));
};

TEST_F(OwnContext, CompletesCallsOnTheThreadThatRunsIt) {
  std::optional<std::string> answer;
  std::thread::id where;
  mine->connect(address()).call<&Greeter::greet>("me").then([&](Result<std::string>&& result) {
    where = std::this_thread::get_id();
    answer = std::move(result).get();
  });
  while (!answer) context.run_one();
  EXPECT_EQ(*answer, "theirs greets me");
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST_F(OwnContext, CompletesAwaitables) {
  std::string answer;
  std::optional<ErrorKind> failure;
  const auto program = [](Peer peer, std::string* answer,
                          std::optional<ErrorKind>* failure) -> asio::awaitable<void> {
    *answer = co_await peer.call<&Greeter::greet>("me").async_get(asio::use_awaitable);
    co_await peer.ready().async_get(asio::use_awaitable);
    try {
      co_await peer.call<Nothing>().async_get(asio::use_awaitable);
    } catch (const Error& error) {
      *failure = error.kind();
    }
  };
  bool ended = false;
  asio::co_spawn(context, program(mine->connect(address()), &answer, &failure),
                 [&](std::exception_ptr error) {
                   EXPECT_EQ(error, nullptr);
                   ended = true;
                 });
  while (!ended) context.run_one();
  EXPECT_EQ(answer, "theirs greets me");
  EXPECT_EQ(failure, ErrorKind::not_found);
}

TEST_F(OwnContext, CompletesFuturesOfTheLibrary) {
  const Peer peer = mine->connect(address());
  auto answer = peer.call<&Greeter::greet>("me").async_get(asio::use_future);
  auto failure = peer.call<Nothing>().async_get(asio::use_future);
  while (answer.wait_for(0s) != std::future_status::ready ||
         failure.wait_for(0s) != std::future_status::ready)
    context.run_one();
  EXPECT_EQ(answer.get(), "theirs greets me");
  EXPECT_EQ(kind_of([&] { failure.get(); }), ErrorKind::not_found);
}

TEST_F(OwnContext, ServesCallsWhileTheProgramRunsIt) {
  auto work = asio::make_work_guard(context);
  std::thread runner([&] { context.run(); });
  const Peer to_mine = theirs.connect(mine->addresses().front());
  EXPECT_EQ(got(to_mine.call<&Greeter::greet>("you")), "mine greets you");
  // A wait on the thread that runs the context would never complete.
  Event refused;
  asio::post(context, [&] {
    auto future = mine->peer("theirs").call<&Greeter::greet>("me");
    EXPECT_EQ(kind_of([&] { future.get(); }), ErrorKind::failed_precondition);
    EXPECT_TRUE(future.valid()) << "it stays as it was";
    refused.set();
  });
  refused.wait();
  EXPECT_EQ(mine->peer("theirs").call<&Greeter::greet>("me").get(), "theirs greets me")
      << "another thread may";
  asio::post(context, [&] { mine.reset(); });
  work.reset();
  runner.join();
  EXPECT_TRUE(test::error_of([&] { got(to_mine.call<&Greeter::greet>("you")); }));
}

TEST_F(OwnContext, MayBeRunBySeveralThreads) {
  auto work = asio::make_work_guard(context);
  std::vector<std::thread> runners;
  for (int i = 0; i < 3; ++i) runners.emplace_back([&] { context.run(); });
  const Peer to_mine = theirs.connect(mine->addresses().front()), to_theirs = mine->connect(address());
  std::vector<Future<std::string>> calls;
  for (int i = 0; i < 300; ++i) {
    calls.push_back(to_mine.call<&Greeter::greet>("you"));
    calls.push_back(to_theirs.call<&Greeter::greet>("me"));
    calls.push_back(to_theirs.with({.timeout = 1h}).call<&Greeter::greet>("me"));
    // Handlers of the program run on all of these threads.
    asio::post(context, [&] {
      to_theirs.call<&Greeter::greet>("me").then([](auto&&) {});
      to_theirs.call<&Greeter::greet>("me").cancel();
    });
  }
  for (std::size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(got(std::move(calls[i])), i % 3 == 0 ? "mine greets you" : "theirs greets me");
  asio::post(context, [&] { mine.reset(); });
  work.reset();
  for (auto& runner : runners) runner.join();
  EXPECT_TRUE(test::error_of([&] { got(to_mine.call<&Greeter::greet>("you")); }));
}

TEST_F(OwnContext, MayBeSharedByAgents) {
  Agent second(context, named("second"));
  auto answer =
      second.connect(mine->addresses().front()).call<&Greeter::greet>("2").async_get(asio::use_future);
  while (answer.wait_for(0s) != std::future_status::ready) context.run_one();
  EXPECT_EQ(answer.get(), "mine greets 2");
}

}  // namespace
}  // namespace weft::rpc::peers_test
