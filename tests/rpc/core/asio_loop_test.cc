#include <weft/rpc/core/asio_loop.h>

#include <gtest/gtest.h>
#include <sched.h>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>

#include <algorithm>
#include <deque>

#include "tests/support/connections.h"

namespace weft::rpc::asio_loop_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(AsioLoop, RunsJobsInOrderOnItsOwnThread) {
  AsioLoop loop;
  std::vector<int> order;
  Handover<bool> here;
  for (int i = 0; i < 100; ++i) loop.post([&, i] { order.push_back(i); });
  loop.post([&] { here.give(loop.running_here() && OwnedThread::here()); });
  EXPECT_TRUE(here.take());
  EXPECT_FALSE(loop.running_here());
  loop.stop();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(AsioLoop, TimersFireInTheOrderOfTheirTimes) {
  AsioLoop loop;
  std::string fired;
  Event done;
  loop.post([&] {
    const auto now = loop.now();
    loop.schedule(now + 3ms, [&] { fired += 'd'; });
    loop.schedule(now + 1ms, [&] { fired += 'b'; });
    loop.schedule(now - 1s, [&] { fired += 'a'; });
    loop.schedule(now + 3ms, [&] { fired += 'e'; });
    loop.schedule(now + 2ms, [&] {
      fired += 'c';
      loop.schedule(loop.now() - 1s,
                    [&] { fired += '!'; });  // scheduled by a timer; due before the remaining timers
    });
    loop.schedule(now + 4ms, [&] { done.set(); });
  });
  done.wait();
  EXPECT_EQ(fired.substr(0, 3), "abc");
  EXPECT_EQ(fired.size(), 6U);
  EXPECT_LT(fired.find('d'), fired.find('e'));
}

TEST(AsioLoop, ACancelledTimerDoesNotFire) {
  AsioLoop loop;
  bool wrong = false;
  Event done;
  loop.post([&] {
    const auto now = loop.now();
    const auto first = loop.schedule(now + 1ms, [&] { wrong = true; });
    const auto second = loop.schedule(now + 1ms, [&] {});
    EXPECT_NE(first, Loop::TimerId{0});
    loop.schedule(now, [&, second] { loop.cancel(second); });
    loop.schedule(now + 2ms, [&] { done.set(); });
    loop.cancel(first);
    loop.cancel(first);
    loop.cancel(0);
  });
  done.wait();
  EXPECT_FALSE(wrong);
}

TEST(AsioLoop, AnInfiniteTimeoutDoesNotOverflow) {
  EXPECT_EQ(later(Clock::now(), std::chrono::nanoseconds::max()), Clock::time_point::max());
  EXPECT_EQ(later(Clock::time_point{} + 1s, 2s), Clock::time_point{} + 3s);
  EXPECT_EQ(later(Clock::time_point{} + 1s, -3s), Clock::time_point{} - 2s);
  AsioLoop loop;
  Event done;
  loop.post([&] {
    loop.schedule(Clock::time_point::max(), [] { FAIL(); });
    loop.schedule(loop.now(), [&] { done.set(); });
  });
  done.wait();
}

TEST(AsioLoop, StopRunsPostedJobsAndDropsTimers) {
  AsioLoop loop;
  auto held = std::make_shared<int>(1);
  int ran = 0;
  Event go;
  loop.post([&] { go.wait(); });
  loop.post([&] { loop.schedule(loop.now() + std::chrono::hours{1}, [held] {}); });
  for (int i = 0; i < 10; ++i) loop.post([&] { ++ran; });
  go.set();
  loop.stop();
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(held.use_count(), 1);
  loop.stop();
}

// The destructor of a dropped timer fails a future, whose continuation tries again.
TEST(AsioLoop, NoTimerIsMadeOnceItStops) {
  AsioLoop loop;
  std::atomic<int> fired{0}, dropped{0};
  const auto again = [&](void*) {
    ++dropped;
    EXPECT_EQ(loop.schedule(loop.now() + 1ms, [&] { ++fired; }), Loop::TimerId{0});
    loop.post([&] { loop.schedule(loop.now() + 1ms, [&] { ++fired; }); });
  };
  loop.post([&] {
    for (int i = 0; i < 2; ++i)
      loop.schedule(loop.now() + 1h, [owned = std::shared_ptr<void>(&loop, again)] {});
  });
  loop.stop();
  EXPECT_EQ(dropped, 2);
  EXPECT_EQ(fired, 0);
  loop.post([&] { loop.schedule(loop.now(), [&] { ++fired; }); });
  loop.post([] {});
  EXPECT_EQ(fired, 0);
}

TEST(AsioLoop, SeveralThreadsMayRunTheProgramsIoContext) {
  constexpr int threads = 3, each = 300;
  asio::io_context io;
  auto work = asio::make_work_guard(io);
  auto loop = std::make_shared<AsioLoop>(io);
  int inside = 0, posted = 0, expired = 0, events = 0;  // not atomic: one turn at a time
  std::atomic<int> left{threads * each * 3};
  const auto turn = [&](int& count) {
    EXPECT_TRUE(loop->running_here());
    EXPECT_EQ(++inside, 1);
    std::this_thread::yield();
    ++count;
    --inside;
    if (--left == 0) work.reset();
  };
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) all.emplace_back([&] { io.run(); });
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&] {
      for (int i = 0; i < each; ++i) {
        loop->post([&] {
          turn(posted);
          const auto cancelled = loop->schedule(loop->now() + 1h, [] { FAIL(); });
          loop->schedule(loop->now() + 10us, [&] { turn(expired); });
          loop->cancel(cancelled);
        });
        asio::post(io, [&] {
          EXPECT_TRUE(loop->runs_on_this_thread());
          loop->run_turn([&] { turn(events); });
        });
      }
    });
  for (auto& thread : all) thread.join();
  EXPECT_EQ(posted, threads * each);
  EXPECT_EQ(expired, threads * each);
  EXPECT_EQ(events, threads * each);
}

TEST(AsioLoop, StopWaitsForTimersThatClose) {
  AsioLoop loop;
  std::atomic<int> fired{0};
  loop.post([&] {
    loop.schedule(loop.now() + 1h, [&] { fired += 100; });
    loop.schedule_closing(loop.now() + 5ms, [&] { ++fired; });
    const auto cancelled = loop.schedule_closing(loop.now() + 1h, [&] { fired += 10; });
    loop.cancel(cancelled);
  });
  loop.stop();
  EXPECT_EQ(fired, 1);
}

TEST(AsioLoop, JobsPostedAfterStopRunOnTheirPostersThread) {
  AsioLoop loop;
  loop.stop();
  std::string log;
  std::thread::id ran;
  loop.post([&] {
    ran = std::this_thread::get_id();
    EXPECT_TRUE(loop.running_here());
    loop.post([&] { log += 'b'; });  // not within this one
    log += 'a';
  });
  EXPECT_EQ(log, "ab");
  EXPECT_EQ(ran, std::this_thread::get_id());
}

// For every interleaving of post() and stop(), no job is lost, and no two jobs run at the same time.
TEST(AsioLoop, ThreadsMayPostWhileItStops) {
  for (int round = 0; round < 50; ++round) {
    AsioLoop loop;
    std::atomic<int> inside{0};
    std::atomic<int> ran{0};
    constexpr int threads = 3, each = 200;
    std::vector<std::thread> posters;
    for (int t = 0; t < threads; ++t)
      posters.emplace_back([&] {
        for (int i = 0; i < each; ++i)
          loop.post([&] {
            EXPECT_EQ(++inside, 1);
            --inside;
            ++ran;
          });
      });
    loop.stop();
    for (auto& poster : posters) poster.join();
    // The last poster may have handed its job to another thread, which ran it before post() returned.
    EXPECT_EQ(ran, threads * each);
  }
}

TEST(AsioLoop, TheLastOwnerMayReleaseItOnTheLoop) {
  Event released;
  {
    auto loop = std::make_shared<AsioLoop>();
    AsioLoop& there = *loop;
    Event mine;
    there.post([loop, &mine, &released]() mutable {
      mine.wait();  // the other reference is gone
      loop.reset();
      released.set();
    });
    loop.reset();
    mine.set();
    released.wait();
  }
}

TEST(AsioLoop, OnTheProgramsIoContextItLeavesNothingBehind) {
  asio::io_context io;
  auto loop = std::make_shared<AsioLoop>(io);
  EXPECT_FALSE(loop->owns_thread());
  std::string log;
  loop->post([&] {
    EXPECT_TRUE(loop->running_here());
    EXPECT_FALSE(OwnedThread::here());
    const auto timer = loop->schedule(loop->now() + std::chrono::hours{1}, [&] { log += '!'; });
    loop->schedule(loop->now() + 1ms, [&, timer] {
      log += 't';
      loop->cancel(timer);
    });
  });
  io.run();  // returns: the cancelled timer does not hold it
  EXPECT_EQ(log, "t");
  loop->stop();
  EXPECT_FALSE(io.stopped() && io.poll() != 0);
}

TEST(AsioLoop, OtherJobsAndTimersRunAfterAJobThrew) {
  asio::io_context context;
  const auto loop = std::make_shared<AsioLoop>(context);
  std::string log;
  loop->post([&] {
    log += 'a';
    loop->schedule(loop->now() + 1ms, [&] {
      log += 't';
      throw std::runtime_error("of a timer");
    });
    loop->schedule(loop->now() + 2ms, [&] { log += 'u'; });
    loop->post([&] { log += 'b'; });
    throw std::runtime_error("of a job");
  });
  EXPECT_NO_THROW(context.run());
  EXPECT_EQ(log, "abtu");
}

TEST(AsioLoop, JobsPostedInATurnRunBeforeTheNextEvent) {
  asio::io_context context;
  AsioLoop loop(context);
  std::string order;
  asio::post(context, [&] {
    loop.run_turn([&] {
      order += 'a';
      loop.post([&] {
        order += 'c';
        loop.post([&] { order += 'd'; });
      });
      order += 'b';  // a job never runs before post() has returned
    });
    order += 'e';
  });
  asio::post(context, [&] { order += 'f'; });
  context.run();
  EXPECT_EQ(order, "abcdef");
}

TEST(AsioLoop, AnEndlessTurnDoesNotStarveOtherEvents) {
  asio::io_context context;
  AsioLoop loop(context);
  int rounds = 0;
  bool other = false;
  std::function<void()> again = [&] {
    ++rounds;
    if (!other) loop.post(again);
  };
  asio::post(context, [&] {
    asio::post(context, [&] { other = true; });
    loop.run_turn(again);
  });
  context.run();
  EXPECT_TRUE(other);
  EXPECT_LT(rounds, 2000);
}

TEST(AsioLoop, JobsKeepTheirOrderAcrossTurns) {
  asio::io_context context;
  AsioLoop loop(context);
  std::vector<int> order;
  asio::post(context, [&] {
    loop.run_turn([&] {
      for (int i = 0; i < 1000; ++i) loop.post([&, i] { order.push_back(i); });
    });
    // before the jobs of the first turn have run
    loop.run_turn([&] { loop.post([&] { order.push_back(1000); }); });
  });
  context.run();
  ASSERT_EQ(order.size(), 1001U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(AsioLoop, JobsOfATurnAreDestroyedWithAnIoContextThatNoThreadRuns) {
  auto loop_held = std::make_shared<int>();
  {
    asio::io_context context;
    auto loop = std::make_shared<AsioLoop>(context);
    asio::post(context, [&, loop] {
      loop->run_turn([&, loop] {
        for (int i = 0; i < 1000; ++i) loop->post([loop, loop_held] {});
      });
    });
    context.run_one();
    EXPECT_GT(loop_held.use_count(), 1);
  }
  EXPECT_EQ(loop_held.use_count(), 1);
}

// A poller that becomes due from outside, as a ring in shared memory does. While the loop sleeps, a posted
// job represents the descriptor that Asio waits for: the job polls, and waits again.
class Bell final : public LoopPoller {
 public:
  Bell(AsioLoop& loop, std::function<void()> rung) : loop_(loop), rung_(std::move(rung)) {}
  void ring() {
    due_ = true;
    if (asleep_.exchange(false)) loop_.post([this] { knocked(); });
  }
  bool poll() override {
    if (!due_.exchange(false)) return false;
    rung_();
    return true;
  }
  bool fall_asleep() override {
    asleep_ = true;
    return sleeps_ = !due_;
  }
  void wake_up() override { sleeps_ = asleep_ = false; }
  bool asleep() const { return asleep_; }

 private:
  void knocked() {
    if (!sleeps_) return;  // the loop polls
    do poll();
    while (!fall_asleep());
  }

  bool sleeps_ = false;  // on the loop
  AsioLoop& loop_;
  std::function<void()> rung_;
  std::atomic<bool> due_{false}, asleep_{false};
};

class SpinningLoop : public testing::TestWithParam<std::optional<std::chrono::nanoseconds>> {};
INSTANTIATE_TEST_SUITE_P(Bounds, SpinningLoop,
                         testing::Values(std::optional<std::chrono::nanoseconds>(50us), std::nullopt),
                         [](const auto& info) { return info.param ? "fixed" : "adaptive"; });

TEST_P(SpinningLoop, PollsAndSleepsAndWakes) {
  AsioLoop loop(GetParam());
  if (!loop.spins()) GTEST_SKIP() << "a loop does not adapt on a machine with one CPU: it never spins there";
  Handover<bool> rung;
  Bell bell(loop, [&] { rung.give(loop.running_here()); });
  loop.post([&] { loop.add_poller(bell); });
  for (int i = 0; i < 2000; ++i) {
    bell.ring();
    ASSERT_TRUE(rung.take());
  }
  Handover<bool> posted;  // a job from another thread wakes the loop
  while (!bell.asleep()) std::this_thread::yield();
  loop.post([&] { posted.give(true); });
  EXPECT_TRUE(posted.take());
  Event removed;
  loop.post([&] {
    loop.remove_poller(bell);
    removed.set();
  });
  removed.wait();
  loop.stop();
}

// Restricts the calling thread, and those that it starts, to one CPU.
class OnOneCpu {
 public:
  OnOneCpu() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before_)) ++cpu;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~OnOneCpu() { ::sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

// The policy stops polling for 5 ms to 10 s. The loop then sleeps, and posted jobs and timers wake it.
TEST(AsioLoop, AnAdaptiveLoopNextToAComputingThreadSleepsAndIsWoken) {
  const OnOneCpu one_cpu;
  AsioLoop loop(std::nullopt);
  if (!loop.spins()) GTEST_SKIP() << "a loop does not adapt on a machine with one CPU";
  std::atomic<bool> over{false};
  std::thread computing([&] {
    while (!over) {
    }
  });
  Handover<bool> rung;
  Bell first(loop, [&] { rung.give(true); }), late(loop, [&] { rung.give(true); });
  on(loop, [&] { loop.add_poller(first); });
  for (int i = 0; i < 100; ++i) {
    first.ring();
    ASSERT_TRUE(rung.take());
  }
  on(loop, [&] { loop.add_poller(late); });
  for (int i = 0; i < 100; ++i) {
    (i % 2 == 0 ? late : first).ring();
    ASSERT_TRUE(rung.take());
  }
  Event fired;
  on(loop, [&] { loop.schedule(loop.now() + 1ms, [&] { fired.set(); }); });
  fired.wait();
  on(loop, [&] {
    loop.remove_poller(first);
    loop.remove_poller(late);
  });
  loop.stop();
  over = true;
  computing.join();
}

TEST(AsioLoop, ASpinningLoopPollsWhileHandlersAreDue) {
  constexpr int many = 1'000'000;
  AsioLoop loop(50us);
  Event over;
  bool rung = false;
  int handlers = 0;
  Bell bell(loop, [&] { rung = true; });
  std::function<void()> handler = [&] {
    if (++handlers == 1) bell.ring();
    if (rung || handlers == many) return over.set();
    asio::post(loop.context(), handler);
  };
  on(loop, [&] {
    loop.add_poller(bell);
    asio::post(loop.context(), handler);
  });
  over.wait();
  on(loop, [&] { loop.remove_poller(bell); });
  EXPECT_TRUE(rung);
  EXPECT_LT(handlers, many);
}

TEST(AsioLoop, ASpinningLoopLimitsPollersThatAreSystemCalls) {
  AsioLoop loop(50us);
  std::deque<Bell> bells;
  for (int i = 0; i < 6; ++i) bells.emplace_back(loop, [] {});
  on(loop, [&] {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(loop.add_poller(bells[static_cast<std::size_t>(i)], true)) << i;
    EXPECT_FALSE(loop.add_poller(bells[4], true));
    EXPECT_TRUE(loop.add_poller(bells[5]));  // pollers that make no system call are not counted
    loop.remove_poller(bells[5]);
    EXPECT_FALSE(loop.add_poller(bells[4], true));
    loop.remove_poller(bells[0]);
    loop.remove_poller(bells[4]);  // it was not added before
    EXPECT_TRUE(loop.add_poller(bells[4], true));
    EXPECT_FALSE(loop.add_poller(bells[0], true));
    for (Bell& bell : bells) loop.remove_poller(bell);
  });
}

// A job may arrive just when the loop ends its polling, and must not be lost.
TEST_P(SpinningLoop, RunsJobsThatArriveAtTheEndOfItsPolling) {
  AsioLoop loop(GetParam() ? std::optional<std::chrono::nanoseconds>(1us) : std::nullopt);
  std::atomic<int> ran{0};
  for (int i = 0; i < 30'000; ++i) {
    loop.post([&] { ++ran; });
    for (int pause = i % 64 * 16; pause != 0 && ran <= i; --pause)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    while (ran <= i) std::this_thread::yield();
  }
  loop.stop();
}

TEST(AsioLoop, JobsThatWerePostedBeforeStopMayStillMakeTimers) {
  for (int i = 0; i < 1000; ++i) {
    AsioLoop loop;
    bool is_made = false;
    loop.post([&] { is_made = loop.schedule(loop.now() + 1h, [] {}) != 0; });
    loop.stop();
    ASSERT_TRUE(is_made) << i;
  }
}

TEST(AsioLoop, ASpinningLoopRunsTimersAndStops) {
  AsioLoop loop(20us);
  Event fired;
  loop.post([&] { loop.schedule(loop.now() + 2ms, [&] { fired.set(); }); });
  fired.wait();
  loop.stop();
  bool late = false;
  loop.post([&] { late = true; });
  EXPECT_TRUE(late);
}

}  // namespace
}  // namespace weft::rpc::asio_loop_test
