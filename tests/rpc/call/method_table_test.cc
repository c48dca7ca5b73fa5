// Limits on the calls of one method that run, and that wait, at the same time.
#include "tests/support/cluster.h"

namespace weft::rpc::method_table_test {
namespace {

using namespace test;

class Desk {
 public:
  Future<int> serve(int n) {
    std::lock_guard lock(mutex_);
    served_.push_back(n);
    return open_[n].future();
  }
  int now(int n) { return n; }
  std::vector<int> served() const {
    std::lock_guard lock(mutex_);
    return served_;
  }
  void answer(int n, int value) {
    std::unique_lock lock(mutex_);
    auto promise = open_.extract(n);
    lock.unlock();
    promise.mapped().complete(value);
  }
  using Service =
      rpc::Service<"desk", Method<"serve", &Desk::serve>, Method<"now", &Desk::now, rpc::non_blocking>>;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::vector<int> served_;
  std::map<int, Promise<int>> open_;  // by the argument of the call
};

class MethodGateTest : public testing::Test {
 protected:
  MethodGateTest() {
    cluster.add("server").serve(desk);
    cluster.add("client");
    peer.emplace(cluster.peer("client", "server"));
  }
  void wait_for_served(std::size_t n) {
    test::eventually("the expected number of calls was served", [&] { return desk->served().size() == n; });
  }
  std::shared_ptr<Desk> desk = std::make_shared<Desk>();
  Cluster cluster{{}};
  std::optional<Peer> peer;
};

TEST_F(MethodGateTest, CallsBeyondBothLimitsAreRefusedAsNotRun) {
  cluster["server"].limit("desk.serve", {.running = 2, .waiting = 1});
  auto first = peer->call<&Desk::serve>(1), second = peer->call<&Desk::serve>(2);
  wait_for_served(2);
  auto third = peer->call<&Desk::serve>(3);
  expect_error([&] { got(peer->call<&Desk::serve>(4)); }, ErrorKind::resource_exhausted, Execution::not_sent,
               "2 run and 1 wait");
  EXPECT_EQ(cluster["server"].counts().calls_shed, 1U);
  EXPECT_EQ(got(peer->call<&Desk::now>(7)), 7) << "other methods have nothing to do with it";
  EXPECT_EQ(desk->served().size(), 2U);

  desk->answer(1, 10);
  EXPECT_EQ(got(std::move(first)), 10);
  wait_for_served(3);
  desk->answer(2, 20);
  desk->answer(3, 30);
  EXPECT_EQ(got(std::move(second)), 20);
  EXPECT_EQ(got(std::move(third)), 30);
}

TEST_F(MethodGateTest, ACancelledCallLeavesTheQueue) {
  cluster["server"].limit("desk.serve", {.running = 1, .waiting = 1});
  auto first = peer->call<&Desk::serve>(1);
  wait_for_served(1);
  auto second = peer->call<&Desk::serve>(2);
  EXPECT_EQ(kind_of([&] { got(peer->call<&Desk::serve>(3)); }), ErrorKind::resource_exhausted);
  second.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(second)); }), ErrorKind::cancelled);
  auto third = peer->call<&Desk::serve>(4);  // sent after the cancellation over the same connection
  EXPECT_EQ(got(peer->call<&Desk::now>(0)), 0);
  desk->answer(1, 1);
  EXPECT_EQ(got(std::move(first)), 1);
  wait_for_served(2);
  desk->answer(4, 4);
  EXPECT_EQ(got(std::move(third)), 4);
  EXPECT_EQ(desk->served(), (std::vector{1, 4}));
}

TEST_F(MethodGateTest, ManyWaitingCallsRunOneAfterAnother) {
  cluster["server"].limit("desk.serve", {.running = 1, .waiting = 10'000});
  cluster["server"].limit("desk.now", {.running = 1, .waiting = 10'000});
  std::vector<Future<int>> calls;
  for (int i = 0; i < 2000; ++i) calls.push_back(peer->call<&Desk::now>(i));
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(got(std::move(calls[static_cast<std::size_t>(i)])), i);
}

TEST_F(MethodGateTest, WaitingCallsAreDroppedWhenTheServerEnds) {
  cluster["server"].limit("desk.serve", {.running = 1, .waiting = 10});
  auto first = peer->call<&Desk::serve>(1);
  wait_for_served(1);
  auto second = peer->call<&Desk::serve>(2);
  EXPECT_EQ(got(peer->call<&Desk::now>(0)), 0);
  const std::weak_ptr<Desk> alive = desk;
  cluster.end("server");
  EXPECT_TRUE(kind_of([&] { got(std::move(first)); }));
  EXPECT_TRUE(kind_of([&] { got(std::move(second)); }));
  desk->answer(1, 0);
  desk.reset();
  EXPECT_TRUE(alive.expired());
}

TEST_F(MethodGateTest, AMethodMayBeLimitedBeforeItIsServed) {
  auto& late = cluster.add("late");
  late.limit("desk.serve", {.running = 1});
  late.serve(desk);
  auto to_late = cluster.peer("client", "late");
  auto first = to_late.call<&Desk::serve>(1);
  wait_for_served(1);
  EXPECT_EQ(kind_of([&] { got(to_late.call<&Desk::serve>(2)); }), ErrorKind::resource_exhausted);
  desk->answer(1, 1);
  EXPECT_EQ(got(std::move(first)), 1);
  EXPECT_EQ(kind_of([&] { late.limit("desk.serve", {}); }), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::rpc::method_table_test
