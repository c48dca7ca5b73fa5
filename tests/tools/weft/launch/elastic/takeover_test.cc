#include "tools/weft/launch/elastic/takeover.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/tools/weft/launch/elastic/store_on_loop.h"

namespace weft::tool::launch::elastic::takeover_test {
namespace {

using namespace std::chrono_literals;
using testing::Trouble;

constexpr auto ttl = 10s;

class TakingOver : public ::testing::Test, protected testing::StoreOnLoop {
 protected:
  struct Driver {
    std::unique_ptr<Takeover> takeover;
    int waits = 0;
    bool drives = false;
    std::optional<SavedJob> found;
    std::string lost;
    std::string told;  // the records of keepers

    void die() { takeover.reset(); }
  };

  void acquire(Driver& driver) {
    Takeover::Calls calls{[&] { ++driver.waits; },
                          [&](std::optional<SavedJob> job) {
                            driver.drives = true;
                            driver.found = std::move(job);
                          },
                          [&](const std::string& why) {
                            driver.lost = why;
                            driver.die();
                          },
                          [&](WorkerId id, const std::optional<KeptWorker>& record) {
                            driver.told += " " + std::to_string(id) + "=" +
                                           (!record         ? "none"
                                            : record->ended ? record->how
                                                            : "runs");
                          }};
    driver.takeover = std::make_unique<Takeover>(loop, store, ttl, std::move(calls));
    driver.takeover->acquire();
  }
  void drive(Driver& driver) {
    acquire(driver);
    ASSERT_TRUE(until([&] { return driver.drives; }));
  }
  static SavedJob job(std::size_t resets) {
    SavedJob saved{"job", 7s, {}};
    saved.driver.resets = resets;
    return saved;
  }
  void keeper(const std::string& worker, const KeptWorker& record) {
    store->set(takeover_keys::worker(worker), to_text(record), {}).get();
  }

  Driver first, second;
};

TEST_F(TakingOver, TheFirstDriverFindsNoJob) {
  drive(first);
  EXPECT_FALSE(first.found);
  EXPECT_EQ(first.waits, 0);
}

TEST_F(TakingOver, AnotherDriverContinuesOnceTheLeaseHasEnded) {
  drive(first);
  bool saved = false;
  first.takeover->save(job(1), [] {});
  loop->turn();
  first.takeover->save(job(2), [&] { saved = true; });
  ASSERT_TRUE(until([&] { return saved; }));
  acquire(second);
  pass(2 * ttl);
  EXPECT_FALSE(second.drives) << "the first one renews its lease";
  EXPECT_EQ(second.waits, 1);
  first.die();
  ASSERT_TRUE(until([&] { return second.drives; }));
  ASSERT_TRUE(second.found);
  EXPECT_EQ(second.found->id, "job");
  EXPECT_EQ(second.found->at, 7s);
  EXPECT_EQ(second.found->driver.resets, 2U);
}

TEST_F(TakingOver, ADriverGivesUpAfterThreeLeases) {
  drive(first);
  acquire(second);
  pass(3 * ttl - 1s);
  EXPECT_EQ(second.lost, "");
  pass(2s);
  EXPECT_EQ(second.lost, "another driver runs this job");
  EXPECT_EQ(first.lost, "");
}

TEST_F(TakingOver, ADriverGivesUpIfTheStoreCannotBeReached) {
  store->trouble = Trouble::unreachable;
  acquire(first);
  pass(3 * ttl + 1s);
  EXPECT_EQ(first.lost, "the store cannot be reached");
}

TEST_F(TakingOver, ALostReplyIsDetected) {
  acquire(first);
  loop->turn();  // it has the lease now, but does not know it
  first.drives = false;
  first.takeover->acquire();
  ASSERT_TRUE(until([&] { return first.drives; }));
  EXPECT_EQ(first.waits, 0);
}

TEST_F(TakingOver, ADriverWhoseLeaseHasEndedEnds) {
  drive(first);
  store->trouble = Trouble::unreachable;
  pass(1min);
  EXPECT_EQ(first.lost, "") << "nobody can say";
  store->trouble = Trouble::none;
  pass(ttl);
  EXPECT_EQ(first.lost, "its lease in the store has ended, and another driver may take over");
}

TEST_F(TakingOver, TheStateOfAnotherDriverIsNotReplaced) {
  drive(first);
  store->set(std::string(takeover_keys::state), "of another driver", {}).get();
  bool saved = false;
  first.takeover->save(job(1), [&] { saved = true; });
  loop->turn();
  EXPECT_EQ(first.lost, "another driver has taken over");
  EXPECT_FALSE(saved);
  EXPECT_EQ(value(std::string(takeover_keys::state)), "of another driver");
}

TEST_F(TakingOver, AStateIsSavedOnceTheStoreAnswersAgain) {
  drive(first);
  bool saved = false;
  store->trouble = Trouble::unreachable;
  first.takeover->save(job(1), [&] { saved = true; });
  pass(1s);
  EXPECT_FALSE(saved);
  store->trouble = Trouble::none;
  pass(1s);
  EXPECT_TRUE(saved);
  EXPECT_EQ(first.lost, "");
}

TEST_F(TakingOver, AMalformedStateIsReported) {
  store->set(std::string(takeover_keys::state), "nonsense", {}).get();
  acquire(first);
  loop->turn();
  EXPECT_EQ(first.lost.substr(0, 36), "the state in the store is malformed:");
}

TEST_F(TakingOver, TheRecordsOfAJobsKeepersAreListed) {
  drive(first);
  keeper("job/1", {});
  keeper("job/22", {true, true, 143, "was ended", ""});
  store->set(takeover_keys::worker("job/3"), "nonsense", {}).get();
  keeper("job/x", {});
  keeper("job2/4", {});
  std::optional<Takeover::Workers> found;
  store->trouble = Trouble::unreachable;
  first.takeover->list("job", [&](Takeover::Workers workers) { found = std::move(workers); });
  loop->turn();
  store->trouble = Trouble::none;
  pass(1s);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 3U);
  EXPECT_FALSE(found->at(1).ended);
  EXPECT_EQ(found->at(22).how, "was ended");
  EXPECT_TRUE(found->at(22).orphaned);
  EXPECT_EQ(found->at(22).status, 143);
  EXPECT_TRUE(found->at(3).ended);
  EXPECT_EQ(found->at(3).how, "has a malformed record in the store");
}

TEST_F(TakingOver, ChangesOfTheRecordsAreReported) {
  drive(first);
  keeper("job/1", {});
  keeper("job2/2", {});
  first.takeover->watch("job");
  loop->turn();
  keeper("job/3", {});
  loop->turn();
  keeper("job/1", {true, false, 0, "ended with status 0", ""});
  store->remove(takeover_keys::worker("job/3")).get();
  loop->turn();
  EXPECT_EQ(first.told, " 1=runs 3=runs 1=ended with status 0 3=none");
}

TEST_F(TakingOver, AWorkerIsOrderedToEndAndForgotten) {
  drive(first);
  keeper("job/5", {});
  first.takeover->watch("job");
  first.takeover->stop(5);
  loop->turn();
  EXPECT_EQ(value(takeover_keys::order("job/5")), "stop");
  first.takeover->forget(5);
  EXPECT_FALSE(value(takeover_keys::order("job/5")));
  EXPECT_FALSE(value(takeover_keys::worker("job/5")));
}

TEST_F(TakingOver, ReleaseRemovesTheJobAndThenTheLease) {
  drive(first);
  first.takeover->save(job(1), [] {});
  loop->turn();
  keeper("job/1", {true, false, 0, "ended with status 0", ""});
  first.takeover->watch("job");
  first.takeover->stop(1);
  loop->turn();
  first.told.clear();
  const std::string lease(takeover_keys::lease), state(takeover_keys::state);
  std::set<std::string> removed;
  store->removing = [&](const std::string& key) {
    EXPECT_TRUE(value(lease)) << "another driver might drive already";
    removed.insert(key);
  };
  bool done = false;
  first.takeover->release([&] {
    EXPECT_FALSE(value(lease));
    done = true;
  });
  loop->turn();
  EXPECT_TRUE(done);
  EXPECT_EQ(removed,
            (std::set<std::string>{state, takeover_keys::order("job/1"), takeover_keys::worker("job/1")}));
  EXPECT_TRUE(store->list("driver/").get().entries.empty());
  EXPECT_EQ(first.told, "") << "what this driver has removed itself is no loss";
  drive(second);
  EXPECT_EQ(second.waits, 0);
  EXPECT_FALSE(second.found) << "a new job";
}

TEST_F(TakingOver, ReleaseWaitsForFiveSecondsAtMost) {
  drive(first);
  int done = 0;
  store->trouble = Trouble::silent;
  first.takeover->release([&] { ++done; });
  pass(4s);
  EXPECT_EQ(done, 0);
  pass(1s);
  EXPECT_EQ(done, 1);
  pass(1min);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(first.lost, "");
}

TEST_F(TakingOver, NoRequestOrTimerIsLeftBehind) {
  drive(first);
  first.takeover->watch("job");
  acquire(second);
  loop->turn();
  first.die();
  second.die();
  loop->turn();
  EXPECT_EQ(store->waiting(), 0U);
  pass(1min);
  EXPECT_EQ(loop->timers(), 0U);
}

TEST(TakeoverLease, IsAQuarterOfTheOrphanWait) {
  EXPECT_EQ(takeover_lease(20s), 5s);
  EXPECT_EQ(takeover_lease(1ms), 2s);
  EXPECT_EQ(takeover_lease(1h), 10s);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::takeover_test
