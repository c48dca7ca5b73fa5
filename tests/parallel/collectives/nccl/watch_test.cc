#include <weft/parallel/collectives/nccl/internal/watch.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/future.h>

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/hand_loop.h"

namespace weft::collectives::nccl::testing {
namespace watch_test {

using namespace std::chrono_literals;

struct Counted final : Watched {
  int looks = 0, left = 0;
  std::function<void()> at_look;
  bool look(rpc::Clock::time_point) override {
    ++looks;
    if (at_look) at_look();
    return --left > 0;
  }
};

TEST(Watch, PollsOncePerIntervalUntilAllWatchesAreDone) {
  const auto loop = std::make_shared<test::HandLoop>();
  Watch watch(loop, {.shortest = 2ms, .longest = 2ms});
  const auto one = std::make_shared<Counted>();
  one->left = 3;
  watch.add(one);
  watch.add(one);  // a second addition has no effect
  loop->turn();
  EXPECT_EQ(one->looks, 1);
  loop->advance(1ms);
  loop->turn();
  EXPECT_EQ(one->looks, 1);
  for (int i = 0; i < 10; ++i) {
    loop->advance(2ms);
    loop->turn();
  }
  EXPECT_EQ(one->looks, 3);
  EXPECT_EQ(loop->timers(), 0U);
  EXPECT_EQ(one.use_count(), 1);

  one->left = 1;  // the object may be watched again
  watch.add(one);
  loop->turn();
  EXPECT_EQ(one->looks, 4);
}

TEST(Watch, PollsLessOftenOverTimeUntilAWatchIsAdded) {
  const auto loop = std::make_shared<test::HandLoop>();
  Watch watch(loop, {.shortest = 20us, .longest = 1ms});
  const auto one = std::make_shared<Counted>(), other = std::make_shared<Counted>();
  one->left = other->left = 1'000'000;
  watch.add(one);
  const auto looks_within = [&](std::chrono::microseconds time) {
    const int before = one->looks;
    for (auto passed = 0us; passed < time; passed += 20us) {
      loop->turn();
      loop->advance(20us);
    }
    return one->looks - before;
  };
  EXPECT_GE(looks_within(320us), 16);  // the shortest interval
  const int later = looks_within(1600us);
  EXPECT_LE(later, 60);  // a sixteenth of up to 1.9 ms
  EXPECT_GE(later, 16);
  looks_within(20ms);
  EXPECT_LE(looks_within(10ms), 11);  // the longest interval
  watch.add(other);
  EXPECT_GE(looks_within(320us), 16);
  EXPECT_EQ(loop->timers(), 2U);  // including the cancelled one
  looks_within(1ms);
  EXPECT_EQ(loop->timers(), 1U);
  watch.end();
  loop->advance(1ms);
  loop->turn();
  EXPECT_EQ(loop->timers(), 0U);  // the timer holds the loop until it fires
}

TEST(Watch, AWatchThatIsAddedDuringACompletionIsNotLost) {
  const auto loop = std::make_shared<test::HandLoop>();
  Watch watch(loop, {.shortest = 1ms, .longest = 1ms});
  const auto one = std::make_shared<Counted>(), other = std::make_shared<Counted>();
  one->left = 1;
  other->left = 1;
  one->at_look = [&] {
    if (one->looks > 1) return;
    watch.add(one);
    watch.add(other);
  };
  watch.add(one);
  for (int i = 0; i < 4; ++i) {
    loop->turn();
    loop->advance(1ms);
  }
  EXPECT_EQ(one->looks, 2);
  EXPECT_EQ(other->looks, 1);
  EXPECT_EQ(loop->timers(), 0U);
}

TEST(Watch, ItsDestructorReleasesWatches) {
  const auto loop = std::make_shared<test::HandLoop>();
  const auto one = std::make_shared<Counted>();
  one->left = 100;
  {
    Watch watch(loop, {.shortest = 1ms, .longest = 1ms});
    watch.add(one);
    loop->turn();
  }
  EXPECT_EQ(one.use_count(), 1);
  loop->advance(1ms);
  loop->turn();
  EXPECT_EQ(one->looks, 1);
}

TEST(Watch, ItsDestructorDuringAPollReleasesWatches) {
  const auto loop = std::make_shared<test::HandLoop>();
  const auto watch = std::make_shared<Watch>(loop);
  const auto one = std::make_shared<Counted>();
  one->left = 100;
  one->at_look = [&] { watch->end(); };
  watch->add(one);
  loop->turn();
  EXPECT_EQ(one->looks, 1);
  EXPECT_EQ(one.use_count(), 1);
}

TEST(Watch, TheEndOfItsLoopReleasesWatches) {
  const auto loop = std::make_shared<rpc::AsioLoop>();
  const auto watch = std::make_shared<Watch>(loop, WatchInterval{1h, 1h});
  const auto one = std::make_shared<Counted>();
  one->left = 100;
  one->at_look = [watch] {};  // the watched object keeps its Watch, as work on a device does
  watch->add(one);
  rpc::detail::Latch looked;
  loop->post([&] { looked.open(); });
  looked.wait();
  EXPECT_EQ(one.use_count(), 2);
  loop->stop();
  EXPECT_EQ(one.use_count(), 1);
  watch->add(one);
  EXPECT_EQ(one.use_count(), 1);
  EXPECT_EQ(one->looks, 1);
}

// The loop ended while no object was watched. A thread that adds one later does not know this.
TEST(Watch, DropsWatchesThatAreAddedAfterItsEnd) {
  const auto loop = std::make_shared<rpc::AsioLoop>();
  const auto watch = std::make_shared<Watch>(loop, WatchInterval{1h, 1h});
  watch->end();
  loop->stop();
  const auto one = std::make_shared<Counted>();
  one->left = 100;
  one->at_look = [watch] {};
  watch->add(one);
  EXPECT_EQ(one.use_count(), 1);
  EXPECT_EQ(one->looks, 0);
}

}  // namespace watch_test
}  // namespace weft::collectives::nccl::testing
