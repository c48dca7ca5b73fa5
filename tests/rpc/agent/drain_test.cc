// The ends of an agent: drain, leave, and the destructor.
#include "tests/support/cluster.h"

namespace weft::rpc::drain_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Worker {
 public:
  explicit Worker(Agent& own) : own_(own) {}

  void block() {
    began.set();
    released.wait();
  }
  Future<std::int64_t> hang() {
    std::lock_guard lock(mutex_);
    hanging_.emplace_back();
    auto future = hanging_.back().future();
    began.set();
    return future;
  }
  // After the test releases it, calls another peer and waits for the reply.
  Task<std::int64_t> ask(CallContext& call, std::string peer) {
    Peer to = own_.peer(peer).with(call);
    own_.peer(own_.name()).notify<&Worker::block>();
    co_return co_await to.call<&Worker::hang>() + co_await to.call<&Worker::one>();
  }
  std::int64_t one() const { return 1; }
  void answer(std::int64_t value) {
    std::lock_guard lock(mutex_);
    for (auto& promise : hanging_) promise.complete(value);
    hanging_.clear();
  }

  using Service = rpc::Service<"worker", Method<"block", &Worker::block>, Method<"hang", &Worker::hang>,
                               Method<"ask", &Worker::ask>, Method<"one", &Worker::one>>;

  Event began, released;

 private:
  Agent& own_;
  std::mutex mutex_;  // guards hanging_
  std::vector<Promise<std::int64_t>> hanging_;
};

class DrainTest : public testing::Test {
 protected:
  DrainTest() : cluster({}) {
    for (const char* name : {"a", "b", "c"}) {
      Agent& agent = cluster.add(name);
      workers[name] = std::make_shared<Worker>(agent);
      agent.serve(workers[name]);
    }
    cluster.acquaint();
    to_b.emplace(cluster.peer("a", "b"));
  }
  ~DrainTest() override {
    for (const auto& [name, worker] : workers) worker->released.set();
  }
  Worker& at(const std::string& name) { return *workers.at(name); }

  Cluster cluster;
  std::map<std::string, std::shared_ptr<Worker>> workers;
  std::optional<Peer> to_b;
};

TEST_F(DrainTest, OfAnIdleAgentCompletesAtOnce) { got(cluster["b"].drain(1h)); }

TEST_F(DrainTest, WaitsUntilTheRepliesAreSent) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto drained = cluster["b"].drain(1h);
  at("b").answer(6);
  got(std::move(drained));
  cluster.end("b");
  EXPECT_EQ(got(std::move(call)), 6);
}

TEST_F(DrainTest, WaitsForCallsThatTheAgentMade) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto drained = cluster["a"].drain(1h);
  EXPECT_FALSE(drained.ready());
  at("b").answer(7);
  got(std::move(drained));
  EXPECT_EQ(got(std::move(call)), 7);
}

TEST_F(DrainTest, AllowsHandlersToMakeCalls) {
  auto call = to_b->call<&Worker::ask>("c");
  at("b").began.wait();
  at("c").began.wait();
  auto drained = cluster["b"].drain(1h);
  at("c").answer(8);
  EXPECT_EQ(got(std::move(call)), 9);
  EXPECT_FALSE(drained.ready()) << "the notification that it sent itself is served still";
  at("b").released.set();
  got(std::move(drained));
}

TEST_F(DrainTest, RefusesNewCalls) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto drained = cluster["b"].drain(1h);
  test::eventually("a has been told", [&] { return !cluster.logged("b is leaving").empty(); });
  const Peer stranger = cluster.add("stranger").connect("inproc://b");
  for (int i = 0; i < 3; ++i)
    for (const Peer& peer : {*to_b, stranger}) {
      expect_error([&] { got(peer.call<&Worker::one>()); }, ErrorKind::shut_down, Execution::not_sent);
    }
  EXPECT_FALSE(drained.ready());
  at("b").answer(1);
  got(std::move(drained));
  EXPECT_EQ(got(std::move(call)), 1);
}

TEST_F(DrainTest, TellsPeersToWhichTheAgentConnectsMeanwhile) {
  Agent& d = cluster.add("d");
  Future<std::int64_t> call;
  Future<void> drained;
  {
    HeldLoop held(d);
    call = d.connect("inproc://b").call<&Worker::hang>();
    drained = d.drain(1h);
  }
  test::eventually("b has been told", [&] { return !cluster.logged("d is leaving").empty(); });
  at("b").began.wait();
  at("b").answer(9);
  got(std::move(drained));
  EXPECT_EQ(got(std::move(call)), 9);
}

TEST_F(DrainTest, FailsAtItsTimeout) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  expect_error(
      [&] { got(cluster["b"].drain(10ms)); }, ErrorKind::deadline_exceeded,
      whole("1 calls are still served, and 0 made calls are in flight, after the timeout of drain()"));
  at("b").answer(2);
  EXPECT_EQ(got(std::move(call)), 2) << "the call itself goes on";
  got(cluster["b"].drain(1h));
}

TEST_F(DrainTest, RefusesASecondDrain) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto drained = cluster["b"].drain(1h);
  EXPECT_EQ(kind_of([&] { got(cluster["b"].drain(1h)); }), ErrorKind::failed_precondition);
  at("b").answer(3);
  got(std::move(drained));
  EXPECT_EQ(got(std::move(call)), 3);
}

TEST_F(DrainTest, FailsIfTheAgentShutsDown) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto drained = cluster["b"].drain(1h);
  cluster["b"].shut_down();
  EXPECT_EQ(kind_of([&] { got(std::move(drained)); }), ErrorKind::shut_down);
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::shut_down) << "it had said goodbye";
}

TEST_F(DrainTest, IsPartOfLeaving) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  auto left = cluster["b"].leave();
  EXPECT_FALSE(left.ready());
  at("b").answer(4);
  got(std::move(left));
  EXPECT_EQ(got(std::move(call)), 4);
}

// --- The destructor ---

TEST_F(DrainTest, TheDestructorFailsTheCallsThatTheAgentMade) {
  auto call = to_b->call<&Worker::hang>();
  at("b").began.wait();
  cluster.end("a");
  expect_error([&] { got(std::move(call)); }, ErrorKind::shut_down, Execution::maybe_executed,
               whole("b: worker.hang: this agent has shut down (may have run)"));
}

TEST_F(DrainTest, TheDestructorWaitsForHandlers) {
  auto call = to_b->call<&Worker::block>();
  at("b").began.wait();
  std::atomic<bool> ended{false};
  std::thread ending([&] {
    cluster.end("b");
    ended = true;
  });
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost) << "its connections end first";
  EXPECT_FALSE(ended);
  at("b").released.set();
  ending.join();
}

TEST_F(DrainTest, TheDestructorWakesHandlersThatWaitForACall) {
  auto call = to_b->call<&Worker::ask>("c");
  at("c").began.wait();
  at("b").released.set();
  cluster.end("b");  // would wait for ever otherwise
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost);
}

TEST_F(DrainTest, PeersMayOutliveTheirAgent) {
  const Peer fresh = cluster["a"].peer("nobody");
  cluster.end("a");
  for (const Peer& peer : {*to_b, fresh}) {
    expect_error([&] { got(peer.call<&Worker::one>()); }, ErrorKind::shut_down, Execution::not_sent);
  }
}

TEST_F(DrainTest, AnAgentCannotShutDownOnItsOwnThreads) {
  struct Suicidal {
    Agent* own;
    void end() { own->shut_down(); }
    using Service = rpc::Service<"suicidal", Method<"end", &Suicidal::end>>;
  };
  cluster["b"].serve(std::make_shared<Suicidal>(Suicidal{&cluster["b"]}));
  EXPECT_EQ(kind_of([&] { got(to_b->call<&Suicidal::end>()); }), ErrorKind::failed_precondition);
  std::optional<HeldLoop> silent(cluster["b"]);  // so that then() runs on the loop
  auto refused = to_b->call<&Worker::one>().then(
      [&](Result<std::int64_t>&&) { return kind_of([&] { cluster["a"].shut_down(); }).value(); });
  silent.reset();
  EXPECT_EQ(got(std::move(refused)), ErrorKind::failed_precondition);
  EXPECT_EQ(got(to_b->call<&Worker::one>()), 1) << "both live";
}

// The notification waits for a thread when its sender has left.
TEST(Notification, IsServedAfterItsSenderHasLeft) {
  class Bell {
   public:
    void block() {
      began.set();
      released.wait();
    }
    void ring() { rung.set(); }
    using Service = rpc::Service<"bell", Method<"block", &Bell::block>, Method<"ring", &Bell::ring>>;
    Event began, released, rung;
  };
  Agent server({.name = "server", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1});
  auto bell = std::make_shared<Bell>();
  server.serve(bell);
  {
    Agent client({.name = "client"});
    const Peer peer = client.connect(server.addresses().front());
    peer.notify<&Bell::block>();
    bell->began.wait();
    peer.notify<&Bell::ring>();
    test::eventually("both notifications have arrived", [&] { return server.counts().calls_served == 2; });
  }
  test::eventually("the sender has gone", [&] { return server.counts().connections == 0; });
  bell->released.set();
  bell->rung.wait();
}

}  // namespace
}  // namespace weft::rpc::drain_test
