// The decisions of a spinning loop to poll or to sleep, with a clock that the test sets.
#include <weft/rpc/core/spin_policy.h>

#include <gtest/gtest.h>

namespace weft::rpc::spin_policy_test {
namespace {

using namespace std::chrono_literals;

constexpr SpinPolicy::Duration none{0};

class SpinPolicyTest : public testing::Test {
 protected:
  bool polls() { return policy.bound(now) > none; }
  bool keeps_polling(SpinPolicy::Duration away) { return policy.yielded(now += away, away); }
  // Sleeps without polling until the next poll.
  int sleeps_before_a_poll() {
    int sleeps = 0;
    for (; !polls(); ++sleeps) policy.slept(1s);
    return sleeps;
  }

  SpinPolicy policy{std::nullopt};
  SpinPolicy::Time now{1h};
};

TEST_F(SpinPolicyTest, AFixedBoundStays) {
  SpinPolicy fixed(20us);
  EXPECT_TRUE(fixed.spins());
  EXPECT_FALSE(fixed.yields());
  for (int i = 0; i < 100; ++i) fixed.missed();
  EXPECT_EQ(fixed.bound(now), 20us);
  EXPECT_FALSE(SpinPolicy(none).spins());
}

TEST_F(SpinPolicyTest, NoLoopPollsOnOneCpu) {
  EXPECT_FALSE(SpinPolicy(std::nullopt, 1).spins());
  EXPECT_TRUE(SpinPolicy(20us, 1).spins()) << "the program has asked for it";
}

TEST_F(SpinPolicyTest, ALoopPollsOnAFreeCore) {
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(keeps_polling(1us));
  EXPECT_TRUE(polls());
}

TEST_F(SpinPolicyTest, PausesOfPollingDoubleOnABusyCore) {
  EXPECT_FALSE(keeps_polling(200us));
  EXPECT_FALSE(polls());
  for (auto pause = SpinPolicy::first_pause; pause < SpinPolicy::max_pause; pause *= 2) {
    now += pause - 1us;
    EXPECT_FALSE(polls()) << pause.count();
    now += 1us;
    ASSERT_TRUE(polls()) << pause.count();
    EXPECT_FALSE(keeps_polling(10us)) << "the trial fails";
    EXPECT_FALSE(polls());
  }
  now += SpinPolicy::max_pause - 1us;
  EXPECT_FALSE(polls());
  now += 1us;
  EXPECT_TRUE(polls());
}

TEST_F(SpinPolicyTest, PausesBeginAnewAfterATrialThatSucceeds) {
  EXPECT_FALSE(keeps_polling(200us));
  now += SpinPolicy::first_pause;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(keeps_polling(1us));
  now += 1min;
  EXPECT_FALSE(keeps_polling(200us));
  now += SpinPolicy::first_pause;
  EXPECT_TRUE(polls());
}

TEST_F(SpinPolicyTest, ALongerPreemptionStopsPollingForLonger) {
  EXPECT_FALSE(keeps_polling(4ms));
  now += 80ms - 1us;
  EXPECT_FALSE(polls());
  now += 1us;
  EXPECT_TRUE(polls());
  EXPECT_FALSE(keeps_polling(10s));
  now += SpinPolicy::max_pause;
  EXPECT_TRUE(polls());
}

// A thread that polls until its quota is used up, and is then suspended for the rest of the period.
TEST_F(SpinPolicyTest, UnderAQuotaTheLoopPollsRarely) {
  SpinPolicy::Duration polled{0};
  constexpr auto time = 100s;
  for (const auto end = now + time; now < end;) {
    if (!polls()) {
      now += 1ms;
      continue;
    }
    for (int i = 0; i < 500; ++i) EXPECT_TRUE(policy.looked(now += 100us, 100us));
    polled += 50ms;
    now += 50ms;
    EXPECT_FALSE(policy.looked(now, 50ms));
  }
  EXPECT_LT(polled, time / 50);
}

TEST_F(SpinPolicyTest, ShortPreemptionsCountWithinASecond) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(keeps_polling(10us));
    EXPECT_TRUE(polls()) << i;
    now += 2s;
  }
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(keeps_polling(10us));
  EXPECT_FALSE(polls());
}

TEST_F(SpinPolicyTest, SparseEventsArePolledForRarely) {
  int polled = 0;
  const int events = 10'000;
  for (int i = 0; i < events; ++i) {
    if (polls()) {
      ++polled;
      policy.missed();
    }
    policy.slept(1ms);
  }
  EXPECT_LT(polled, events / 50) << "at most 1 % of a core, for events a millisecond apart: 50 µs each";
}

TEST_F(SpinPolicyTest, FrequentEventsResumePolling) {
  for (int i = 0; i < 1000; ++i) policy.missed();
  EXPECT_GT(sleeps_before_a_poll(), 100);
  for (int i = 0; i < 1000; ++i) policy.missed();
  EXPECT_FALSE(polls());
  policy.slept(60us);
  EXPECT_TRUE(polls());
  for (int i = 0; i < 1000; ++i) policy.missed();
  policy.found();
  EXPECT_TRUE(polls());
}

}  // namespace
}  // namespace weft::rpc::spin_policy_test
