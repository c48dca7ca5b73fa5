#include "tools/weft/launch/elastic/blacklist.h"

#include <gtest/gtest.h>

namespace weft::tool::launch::elastic::blacklist_test {
namespace {

using namespace std::chrono_literals;

const BlacklistOptions options{.failures = 2, .healthy_after = 60s, .cooldown = 10s, .max_cooldown = 100s};

TEST(Blacklist, AHostIsBlacklistedAfterConsecutiveFailures) {
  Blacklist list(options, 1);
  EXPECT_FALSE(list.fail("a", 0s, 0s));
  EXPECT_FALSE(list.fail("b", 0s, 0s));
  EXPECT_FALSE(list.holds("a"));
  EXPECT_TRUE(list.fail("a", 1s, 59s));
  EXPECT_TRUE(list.holds("a"));
  EXPECT_FALSE(list.holds("b"));
  EXPECT_FALSE(list.fail("a", 2s, 0s)) << "blacklisted already";
}

TEST(Blacklist, AFailureAfterAHealthyTimeStartsANewCount) {
  Blacklist list(options, 1);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(list.fail("a", 100s * i, 60s));
  EXPECT_TRUE(list.fail("a", 1001s, 1s));
}

TEST(Blacklist, CooldownsDoubleWithJitterUpToTheMaximum) {
  Blacklist list(options, 7);
  std::chrono::nanoseconds now = 0s, base = 10s;
  EXPECT_FALSE(list.fail("a", now, 0s));
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(list.fail("a", now, 0s)) << "on probation";
    const auto cooldown = *list.until("a") - now;
    EXPECT_GE(cooldown, std::min<std::chrono::nanoseconds>(base, 100s));
    EXPECT_LE(cooldown, std::min<std::chrono::nanoseconds>(base + 10s, 100s));
    EXPECT_EQ(list.next_release(), list.until("a"));
    now = *list.until("a");
    EXPECT_TRUE(list.release(now - 1ns).empty());
    EXPECT_EQ(list.release(now), std::vector<std::string>{"a"});
    EXPECT_FALSE(list.holds("a"));
    base *= 2;
  }
}

TEST(Blacklist, HostsThatFailTogetherReturnOneAfterAnother) {
  Blacklist list({.failures = 1, .cooldown = 10s, .max_cooldown = 100s}, 1);
  list.fail("a", 0s, 0s);
  list.fail("b", 0s, 0s);
  EXPECT_NE(list.until("a"), list.until("b"));
}

TEST(Blacklist, AHealthyTimeEndsTheDoubling) {
  Blacklist list({.failures = 1, .healthy_after = 60s, .cooldown = 10s, .max_cooldown = 1000s}, 1);
  for (int i = 0; i < 4; ++i) {
    list.fail("a", 0s, 0s);
    list.release(*list.until("a"));
  }
  list.fail("a", 0s, 60s);
  EXPECT_LE(*list.until("a"), 20s);
}

TEST(Blacklist, WithoutACooldownAHostIsBlacklistedForever) {
  Blacklist list({.failures = 1, .cooldown = 0s}, 1);
  EXPECT_TRUE(list.fail("a", 0s, 0s));
  EXPECT_FALSE(list.until("a"));
  EXPECT_FALSE(list.next_release());
  EXPECT_TRUE(list.release(std::chrono::hours{10'000}).empty());
  EXPECT_TRUE(list.holds("a"));
}

// As keep_running() uses it.
TEST(Blacklist, WorkersWaitLongerFromFailureToFailureAndIndependently) {
  Blacklist waits({.failures = 1, .healthy_after = 60s, .cooldown = 1s, .max_cooldown = 8s}, 3);
  std::chrono::nanoseconds now = 0s;
  const auto wait_of = [&](const char* worker, std::chrono::nanoseconds ran) {
    EXPECT_TRUE(waits.fail(worker, now, ran));
    const auto wait = *waits.until(worker) - now;
    now += wait;
    EXPECT_EQ(waits.release(now), std::vector<std::string>{worker});
    return wait;
  };
  for (const auto base : {1s, 2s, 4s}) {
    const auto wait = wait_of("worker0", 59s);
    EXPECT_GE(wait, base);
    EXPECT_LT(wait, base + 1s);
  }
  EXPECT_EQ(wait_of("worker0", 0s), 8s) << "the maximum";
  EXPECT_EQ(wait_of("worker0", 0s), 8s);
  EXPECT_EQ(waits.state().hosts.at("worker0").times, 5U);
  EXPECT_LT(wait_of("worker1", 0s), 2s);
  EXPECT_LT(wait_of("worker0", 60s), 2s) << "it has run well";
  EXPECT_EQ(waits.state().hosts.at("worker0").times, 1U);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::blacklist_test
