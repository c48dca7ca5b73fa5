#include "tools/weft/launch/elastic/keeper.h"

#include <gtest/gtest.h>

#include "tests/tools/weft/launch/elastic/store_on_loop.h"
#include "tools/weft/errors.h"

namespace weft::tool::launch::elastic::keeper_test {
namespace {

using namespace std::chrono_literals;
using testing::Trouble;

const std::string order = takeover_keys::order("job/7"), record_key = takeover_keys::worker("job/7");

class Keeping : public ::testing::Test, protected testing::StoreOnLoop {
 protected:
  // Starts the keeper of a worker without a process.
  void keep(std::chrono::nanoseconds orphan_wait = 1h) {
    keeper.emplace(
        loop, store, "job/7", orphan_wait,
        Keeper::Calls{[this] { ++starts; }, [this](const std::string& why) { stops.push_back(why); },
                      [this] { ++reports; }});
  }
  void driver_comes() { store->set(std::string(takeover_keys::lease), "driver", {}).get(); }
  void driver_goes() { store->remove(std::string(takeover_keys::lease)).get(); }
  KeptWorker record() { return kept_worker(value(record_key).value()); }

  std::optional<Keeper> keeper;
  int starts = 0, reports = 0;
  std::vector<std::string> stops;
};

TEST_F(Keeping, AWorkerIsRegisteredBeforeItStarts) {
  keep();
  EXPECT_FALSE(record().ended);
  EXPECT_EQ(starts, 0);
  loop->turn();
  EXPECT_EQ(starts, 1);
  pass(1min);
  EXPECT_EQ(starts, 1);
  EXPECT_FALSE(record().ended) << "its lease is renewed";
}

TEST_F(Keeping, AWorkerHasOneKeeper) {
  keep();
  EXPECT_THROW(keep(), UsageError);
}

TEST_F(Keeping, TheEndOfAWorkerIsStoredWithoutALease) {
  keep();
  loop->turn();
  keeper->ended({"", "was killed by signal 9", "no memory\n", 137});
  EXPECT_EQ(reports, 0) << "on the loop only";
  loop->turn();
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(keeper->status(), 137);
  keeper.reset();
  pass(1h);
  const KeptWorker end = record();
  EXPECT_TRUE(end.ended);
  EXPECT_FALSE(end.orphaned);
  EXPECT_EQ(end.status, 137);
  EXPECT_EQ(end.how, "was killed by signal 9");
  EXPECT_EQ(end.last_error, "no memory\n");
  EXPECT_EQ(reports, 1);
}

TEST_F(Keeping, AnOrderStopsTheWorker) {
  keep();
  loop->turn();
  store->set(takeover_keys::order("job/70"), "stop", {}).get();
  loop->turn();
  EXPECT_EQ(stops.size(), 0U) << "of another worker";
  store->set(order, "stop", {}).get();
  loop->turn();
  EXPECT_EQ(stops, std::vector<std::string>{"was stopped by the driver"});
  EXPECT_FALSE(record().ended) << "before it has ended";
  keeper->ended({"", "ended with status 3", "", 3});
  EXPECT_EQ(record().how, "was stopped by the driver");
  EXPECT_EQ(record().status, 3);
}

TEST_F(Keeping, AWorkerThatIsOrderedToEndBeforeItsStartDoesNotStart) {
  store->set(order, "stop", {}).get();
  keep();
  loop->turn();
  EXPECT_EQ(starts, 0);
  EXPECT_EQ(stops.size(), 0U);
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(record().how, "was stopped by the driver");
  EXPECT_EQ(keeper->status(), 143);
}

TEST_F(Keeping, AWorkerOutlivesItsDriverForTheOrphanWait) {
  driver_comes();
  keep(1min);
  pass(10min);
  EXPECT_EQ(stops.size(), 0U);
  driver_goes();
  pass(59s);
  EXPECT_EQ(stops.size(), 0U);
  driver_comes();  // another driver
  pass(10min);
  EXPECT_EQ(stops.size(), 0U);
  driver_goes();
  pass(1min);
  EXPECT_EQ(stops, std::vector<std::string>{"was ended after 60.0 s without a driver"});
  keeper->ended({"", "", "", 143});
  EXPECT_TRUE(record().orphaned);
}

TEST_F(Keeping, AWorkerWithoutADriverWaitsForAnotherDriver) {
  keep(1min);
  pass(59s);
  EXPECT_EQ(stops.size(), 0U);
  pass(1s);
  EXPECT_EQ(stops.size(), 1U);
}

TEST_F(Keeping, AWorkerContinuesWhileTheStoreCannotBeReached) {
  driver_comes();
  keep(1min);
  loop->turn();
  for (const Trouble trouble : {Trouble::unreachable, Trouble::silent}) {
    store->trouble = trouble;
    pass(10min);
    EXPECT_EQ(stops.size(), 0U);
  }
}

// The lease has expired in the store, and the driver has replaced the worker.
TEST_F(Keeping, AWorkerEndsWithItsKeepersLease) {
  driver_comes();
  keep(1min);
  loop->turn();
  store->trouble = Trouble::unreachable;  // no lease is renewed
  pass(1min);
  store->trouble = Trouble::none;
  EXPECT_FALSE(value(record_key));
  pass(10s);
  EXPECT_EQ(stops, std::vector<std::string>{"its keeper's lease in the store has ended"});
}

TEST_F(Keeping, AReportWithoutAReplyIsAbandoned) {
  keep();
  loop->turn();
  store->trouble = Trouble::silent;
  keeper->ended({"", "ended with status 1", "", 1});
  pass(9s);
  EXPECT_EQ(reports, 0);
  pass(1s);
  EXPECT_EQ(reports, 1);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::keeper_test
