#include <weft/rpc/job/store/store_table.h>

#include "tests/support/errors.h"

namespace weft::rpc::store_table_test {
namespace {

using namespace std::chrono_literals;

class StoreTableTest : public testing::Test {
 protected:
  using Entries = std::map<std::string, std::optional<std::string>>;

  // Advances the clock and calls tick(), as the owner does regularly.
  void pass(std::chrono::nanoseconds time) {
    now_ += time;
    table_.tick(now_);
    for (const LeaseId lease : table_.due()) table_.end_lease(lease, jobs_);
  }
  void pass_in_ticks(std::chrono::nanoseconds time) {
    for (; time > 0ns; time -= std::min(time, table_.tick_interval()))
      pass(std::min(time, table_.tick_interval()));
  }
  void run_jobs() {
    for (Callback& job : std::exchange(jobs_, {})) job();
  }
  Future<StoreChanges> watch(const std::string& prefix, std::uint64_t after) {
    auto waiting = detail::wait_for_change(prefix, after, {}, [](const auto&) {}, nullptr);
    table_.wait(waiting.wait, jobs_);
    return std::move(waiting.future);
  }

  Clock::time_point now_{};
  StoreTable table_;
  StoreTable::Jobs jobs_;
};

TEST_F(StoreTableTest, AWatchFromBeforeAForgottenRemovalReadsAllKeys) {
  table_.set("a/0", "", no_lease, jobs_);
  const std::uint64_t before = table_.version();
  table_.remove("a/0", jobs_);
  table_.set("z", "", no_lease, jobs_);
  EXPECT_EQ(table_.changes("a/", before).entries, (Entries{{"a/0", std::nullopt}}));
  EXPECT_FALSE(table_.changed("b/", before));
  for (int i = 0; i < 1100; ++i) {
    table_.set("c/" + std::to_string(i), "", no_lease, jobs_);
    table_.remove("c/" + std::to_string(i), jobs_);
  }
  // the removal is no longer recorded, so every key may have changed
  EXPECT_TRUE(table_.changed("a/", before));
  EXPECT_TRUE(table_.changes("a/", before).whole);
  EXPECT_EQ(table_.changes("", before).entries, (Entries{{"z", ""}}));
  EXPECT_FALSE(table_.changed("a/", table_.version() - 1));
}

TEST_F(StoreTableTest, AWatchReportsTheLatestChangeOfEachKey) {
  const std::uint64_t before = table_.version();
  table_.set("a", "1", no_lease, jobs_);
  table_.set("b", "1", no_lease, jobs_);
  table_.remove("a", jobs_);
  const std::uint64_t between = table_.version();
  table_.set("a", "2", no_lease, jobs_);
  table_.set("b", "2", no_lease, jobs_);
  table_.remove("b", jobs_);
  EXPECT_EQ(table_.changes("", before).entries, (Entries{{"a", "2"}, {"b", std::nullopt}}));
  EXPECT_EQ(table_.changes("", between).entries, (Entries{{"a", "2"}, {"b", std::nullopt}}));
  EXPECT_EQ(table_.changes("", table_.version()).entries, Entries{});
  EXPECT_FALSE(table_.remove("b", jobs_));
  EXPECT_EQ(table_.changes("", 0).entries, (Entries{{"a", "2"}}));
  EXPECT_TRUE(table_.changes("", 0).whole);
}

TEST_F(StoreTableTest, AWaitForKeysIsRegisteredAtTheFirstMissingKey) {
  auto waiting = detail::wait_for_keys({"a", "b"}, {}, [](const auto&) {}, nullptr);
  table_.wait(waiting.wait, jobs_);
  table_.set("b", "", no_lease, jobs_);
  EXPECT_EQ(table_.waits(), 1U);
  table_.set("a", "", no_lease, jobs_);
  EXPECT_EQ(table_.waits(), 0U);
  EXPECT_FALSE(waiting.future.ready());  // the job runs after the caller has released its lock
  run_jobs();
  EXPECT_TRUE(waiting.future.ready());
}

TEST_F(StoreTableTest, DroppedWaitsLeaveNothing) {
  std::vector<std::shared_ptr<StoreWait>> waits;
  for (int i = 0; i < 10; ++i) {
    auto keys = detail::wait_for_keys({"a", "b" + std::to_string(i % 2)}, {}, [](const auto&) {}, nullptr);
    table_.wait(keys.wait, jobs_);
    waits.push_back(keys.wait);
    auto change = detail::wait_for_change("a", 1, {}, [](const auto&) {}, nullptr);
    table_.wait(change.wait, jobs_);
    waits.push_back(change.wait);
    std::move(keys.future).then([](auto&&) {});
    std::move(change.future).then([](auto&&) {});
  }
  EXPECT_EQ(table_.waits(), 20U);
  for (std::size_t i = 0; i < waits.size(); i += 2) table_.drop(waits[i]);
  table_.drop(waits[0]);
  EXPECT_EQ(table_.waits(), 10U);
  EXPECT_EQ(table_.take_all().size(), 10U);
  EXPECT_EQ(table_.waits(), 0U);
  for (const auto& wait : waits) wait->fail(Error(ErrorKind::shut_down, "over"));
}

// --- Leases ---

TEST_F(StoreTableTest, ARenewalCountsFromItsOwnTimeNotFromTheLastTick) {
  table_.grant(7, 1s, now_);
  pass(200ms);
  now_ += 200ms;  // between two ticks
  table_.renew(7, now_);
  pass_in_ticks(999ms);
  EXPECT_TRUE(table_.has_lease(7));
  pass_in_ticks(1ms);
  EXPECT_FALSE(table_.has_lease(7));
}

TEST_F(StoreTableTest, AStallOfTheOwnerDoesNotExpireLeases) {
  table_.grant(7, 1s, now_);
  table_.set("key", "", 7, jobs_);
  pass(1h);  // the owner was stopped, so clients may not have been able to renew
  EXPECT_TRUE(table_.has_lease(7));
  now_ += 1h;
  table_.renew(7, now_);
  pass_in_ticks(999ms);
  EXPECT_TRUE(table_.has_lease(7));
  pass_in_ticks(1ms);
  EXPECT_FALSE(table_.has_lease(7));
}

TEST_F(StoreTableTest, TheShortestLeaseDeterminesTheInterval) {
  EXPECT_EQ(table_.tick_interval(), 1s);
  table_.grant(1, 1h, now_);
  EXPECT_EQ(table_.tick_interval(), 1s);
  table_.grant(2, 100ms, now_);
  EXPECT_EQ(table_.tick_interval(), 25ms);
  table_.grant(3, 1ns, now_);
  EXPECT_EQ(table_.tick_interval(), 10ms);
  for (const LeaseId lease : {1, 2, 3}) table_.end_lease(lease, jobs_);
  table_.grant(4, std::chrono::nanoseconds::max(), now_);
  EXPECT_EQ(table_.tick_interval(), 1s);
  pass_in_ticks(1h);
  EXPECT_TRUE(table_.has_lease(4));
}

TEST_F(StoreTableTest, TheEndOfALeaseNotifiesWatchersOfItsKeys) {
  table_.grant(7, 1s, now_);
  for (const char* key : {"a/1", "a/2", "b"}) table_.set(key, "", 7, jobs_);
  auto watch_a = watch("a/", table_.version());
  auto watch_c = watch("c", table_.version());
  table_.end_lease(7, jobs_);
  run_jobs();
  ASSERT_TRUE(watch_a.ready());
  EXPECT_FALSE(watch_c.ready());
  EXPECT_EQ(watch_a.get().entries, (Entries{{"a/1", std::nullopt}, {"a/2", std::nullopt}}));
  table_.take_all();
}

// --- As a copy of another store ---

TEST_F(StoreTableTest, ACopyReportsAllChangesOfAVersionTogether) {
  table_.restart(100, jobs_);
  auto change = watch("a/", 100);
  table_.mirror(105, {{"a/1", "x"}, {"b", "y"}, {"a/2", std::nullopt}, {"a/3", "z"}}, jobs_);
  run_jobs();
  const StoreChanges changes = change.get();
  EXPECT_EQ(changes.version, 105U);
  EXPECT_FALSE(changes.whole);
  EXPECT_EQ(changes.entries, (Entries{{"a/1", "x"}, {"a/2", std::nullopt}, {"a/3", "z"}}));
  EXPECT_EQ(table_.known_since(), 100U);
}

TEST_F(StoreTableTest, ACopyThatRestartsNotifiesAllWaiters) {
  table_.restart(100, jobs_);
  table_.mirror(105, {{"a/1", "x"}}, jobs_);
  auto change = watch("a/", 105);
  auto of_another = watch("b/", 105);
  table_.restart(200, jobs_);
  run_jobs();
  EXPECT_TRUE(change.get().whole);
  EXPECT_TRUE(of_another.get().whole);
  EXPECT_EQ(table_.find("a/1"), nullptr);
}

TEST_F(StoreTableTest, ACopyOfAnotherStoreWithALowerVersionNotifiesAllWaiters) {
  table_.restart(100, jobs_);
  auto change = watch("a/", 100);
  table_.restart(1, jobs_);
  run_jobs();
  EXPECT_TRUE(change.get().whole);
}

}  // namespace
}  // namespace weft::rpc::store_table_test
