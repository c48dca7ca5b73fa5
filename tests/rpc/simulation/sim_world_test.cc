// Virtual time, the order in which things run, and the incarnations of processes.
#include <weft/rpc/testing/simulation/sim_world.h>

#include <weft/rpc/core/task.h>

#include <algorithm>
#include <set>

#include "tests/support/errors.h"

namespace weft::test::sim_world_test {
namespace {

using namespace std::chrono_literals;
using rpc::Clock;

TEST(SimRandom, GivesTheSameNumbersEverywhere) {
  SimRandom random(1);  // of xoshiro256** and splitmix64, computed apart from this
  EXPECT_EQ(random.next(), 0xb3f2af6d0fc710c5U);
  EXPECT_EQ(random.next(), 0x853b559647364ceaU);
  EXPECT_EQ(random.next(), 0x92f89756082a4514U);
}

TEST(SimRandom, StaysWithinItsBounds) {
  SimRandom random(3);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 2000; ++i) {
    EXPECT_LT(random.below(7), 7U);
    const auto spread = random.spread(5, 1000);
    EXPECT_GE(spread, 5U);
    EXPECT_LE(spread, 1000U);
    seen.insert(random.between(2, 4));
    const auto wait = random.between(3ns, 5ns);
    EXPECT_TRUE(wait >= 3ns && wait <= 5ns);
  }
  EXPECT_EQ(seen, (std::set<std::uint64_t>{2, 3, 4}));
  SimRandom other = random.split();
  EXPECT_NE(random.next(), other.next());
}

TEST(SimWorld, TimeAdvancesToTheNextTimer) {
  SimWorld world(1);
  const auto loop = world.start("anna").make_loop();
  const auto start = world.now();
  std::vector<std::pair<int, std::chrono::nanoseconds>> fired;
  loop->post([&] {
    for (const int hours : {3, 1, 2})
      loop->schedule(loop->now() + std::chrono::hours(hours),
                     [&, hours] { fired.emplace_back(hours, loop->now() - start); });
  });
  EXPECT_TRUE(world.run_until_idle());
  ASSERT_EQ(fired.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(fired[i].first, i + 1);
    EXPECT_GE(fired[i].second, std::chrono::hours(i + 1));
    EXPECT_LT(fired[i].second, std::chrono::hours(i + 1) + 1s);
  }
}

TEST(SimWorld, ATimerThatIsCancelledNeverFires) {
  SimWorld world(1);
  const auto loop = world.start("anna").make_loop();
  bool fired = false;
  loop->post([&] {
    const auto timer = loop->schedule(loop->now() + 1s, [&] { fired = true; });
    loop->schedule(loop->now() + 500ms, [&, timer] { loop->cancel(timer); });
    loop->cancel(12345);
  });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_FALSE(fired);
}

TEST(SimWorld, RunForAdvancesByTheGivenTime) {
  SimWorld world(1);
  const auto loop = world.start("anna").make_loop();
  int ticks = 0;
  std::function<void()> tick = [&] {
    ++ticks;
    loop->schedule(loop->now() + 1s, [&] { tick(); });
  };
  loop->post([&] { tick(); });
  const auto start = world.now();
  world.run_for(10500ms);
  EXPECT_EQ(world.now() - start, 10500ms);
  EXPECT_EQ(ticks, 11);
  EXPECT_TRUE(world.run_until([&] { return ticks == 15; }, 1min));
  EXPECT_FALSE(world.run_until([&] { return ticks == 1000; }, 1min));
  EXPECT_FALSE(world.run_until_idle(1min));  // the next tick is always scheduled
}

// Runs one job on each of two loops and on an executor. Returns the order in which they ran.
std::string order_of(std::uint64_t seed) {
  SimWorld world(seed);
  SimProcess& process = world.start("anna");
  const auto a = process.make_loop(), b = process.make_loop();
  const auto handlers = process.make_executor();
  std::string order;
  for (const char name : {'1', '2', '3'}) {
    a->post([&order, name] { order += std::string("a") + name; });
    b->post([&order, name] { order += std::string("b") + name; });
    handlers->post([&order, name] { order += std::string("h") + name; });
  }
  EXPECT_TRUE(world.run_until_idle());
  return order;
}

std::string only(const std::string& order, char who) {
  std::string result;
  for (std::size_t i = 0; i < order.size(); i += 2)
    if (order[i] == who) result += order[i + 1];
  return result;
}

TEST(SimWorld, LoopsKeepTheirOrderAndOvertakeEachOther) {
  std::set<std::string> orders, handler_orders;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const std::string order = order_of(seed);
    EXPECT_EQ(order, order_of(seed));
    EXPECT_EQ(only(order, 'a'), "123");
    EXPECT_EQ(only(order, 'b'), "123");
    orders.insert(order);
    handler_orders.insert(only(order, 'h'));
  }
  EXPECT_GT(orders.size(), 100U);
  EXPECT_EQ(handler_orders.size(), 6U);  // all permutations
}

TEST(SimWorld, ReportsWhichLoopIsRunning) {
  SimWorld world(1);
  SimProcess& process = world.start("anna");
  const auto a = process.make_loop(), b = process.make_loop();
  EXPECT_FALSE(a->running_here());
  bool ran = false;
  a->post([&] {
    ran = true;
    EXPECT_TRUE(a->running_here());
    EXPECT_FALSE(b->running_here());
  });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_TRUE(ran);
  EXPECT_FALSE(a->running_here());
}

rpc::Task<int> add_later(std::shared_ptr<SimLoop> loop, int a, int b) {
  rpc::Promise<void> promise(loop);
  auto waited = promise.future();
  loop->post([loop, promise = std::make_shared<rpc::Promise<void>>(std::move(promise))] {
    loop->schedule(loop->now() + 1s, [promise] { promise->complete(rpc::Result<void>{}); });
  });
  co_await std::move(waited);
  co_return a + b;
}

TEST(SimWorld, ReturnsTheResultOfATask) {
  SimWorld world(1);
  SimProcess& process = world.start("anna");
  const auto loop = process.make_loop();
  const auto handlers = process.make_executor();
  EXPECT_EQ(world.got(add_later(loop, 1, 2).start(*handlers)), 3);
  rpc::Promise<int> never;
  EXPECT_THROW(world.got(never.future()), SimFailure);
}

TEST(SimWorld, ABlockingWaitIsAnError) {
  SimWorld world(1);
  SimProcess& process = world.start("anna");
  rpc::Promise<int> promise;
  auto future = promise.future();
  std::optional<rpc::ErrorKind> refused;
  process.make_executor()->post([&] { refused = kind_of([&] { return future.get(); }); });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_EQ(refused, rpc::ErrorKind::failed_precondition);
}

TEST(SimWorld, ASimulationWithoutAnEndIsAFailure) {
  SimWorld world(1, {.max_steps = 1000});
  const auto loop = world.start("anna").make_loop();
  std::function<void()> again = [&] { loop->post([&] { again(); }); };
  again();
  EXPECT_THROW(world.run_until_idle(), SimFailure);
}

TEST(SimWorld, AnExceptionOfAJobReachesTheTest) {
  SimWorld world(1);
  const auto loop = world.start("anna").make_loop();
  loop->post([] { throw std::logic_error("a fault"); });
  EXPECT_THROW(world.run_until_idle(), std::logic_error);
  EXPECT_FALSE(loop->running_here());
}

// --- Processes ---

struct Flag {
  explicit Flag(bool& f) : flag(f) {}
  ~Flag() { flag = true; }
  bool& flag;
};

TEST(SimProcess, ACrashRunsNeitherJobsNorDestructors) {
  bool job_ended = false, object_ended = false, ran = false;
  {
    SimWorld world(1);
    SimProcess& process = world.start("anna");
    const auto loop = process.make_loop();
    process.keep(std::make_shared<Flag>(object_ended));
    loop->post([&, flag = std::make_shared<Flag>(job_ended)] { ran = true; });
    loop->schedule(loop->now() + 1s, [&] { ran = true; });
    world.crash(process, SimCrash::process);
    EXPECT_FALSE(process.alive());
    loop->post([&] { ran = true; });  // dropped
    EXPECT_TRUE(world.run_until_idle());
    EXPECT_FALSE(ran || job_ended || object_ended);
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(job_ended && object_ended);
}

TEST(SimProcess, ANameHasOneIncarnationAtATime) {
  SimWorld world(1);
  SimProcess& first = world.start("anna");
  EXPECT_THROW(world.start("anna"), SimFailure);
  EXPECT_EQ(world.find("anna"), &first);
  world.crash(first, SimCrash::host);
  EXPECT_EQ(world.find("anna"), nullptr);
  SimProcess& second = world.start("anna");
  EXPECT_EQ(world.find("anna"), &second);
  EXPECT_NE(first.incarnation(), second.incarnation());
  bool ran = false;
  second.make_loop()->post([&] { ran = true; });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_TRUE(ran);
}

TEST(SimProcess, MayCrashWithinOneOfItsJobs) {
  SimWorld world(1);
  SimProcess& process = world.start("anna");
  const auto loop = process.make_loop();
  std::string ran;
  loop->post([&] {
    world.crash(process, SimCrash::process);
    ran += "1";
    loop->post([&] { ran += "2"; });
  });
  loop->post([&] { ran += "3"; });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_EQ(ran, "1");
}

TEST(SimProcess, AStalledProcessIsLate) {
  SimWorld world(1);
  SimProcess& process = world.start("anna");
  const auto loop = process.make_loop(), other = world.start("bert").make_loop();
  process.stall(5s);
  const auto start = world.now();
  std::chrono::nanoseconds when{}, when_other{};
  loop->post([&] { when = world.now() - start; });
  other->post([&] { when_other = world.now() - start; });
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_GE(when, 5s);
  EXPECT_LT(when_other, 1s);
}

TEST(SimWorld, LoopsMayOutliveIt) {
  std::shared_ptr<SimLoop> loop;
  std::shared_ptr<SimExecutor> handlers;
  Clock::time_point end;
  {
    SimWorld world(1);
    loop = world.start("anna").make_loop();
    handlers = world.find("anna")->make_executor();
    world.run_for(3s);
    end = world.now();
  }
  bool ran = false;
  loop->post([&] { ran = true; });
  loop->cancel(loop->schedule(end, [&] { ran = true; }));
  handlers->post([&] { ran = true; });
  EXPECT_EQ(loop->now(), end);
  EXPECT_FALSE(loop->running_here() || ran);
}

}  // namespace
}  // namespace weft::test::sim_world_test
