#include "tools/weft/launch/elastic/store_watch.h"

#include <gtest/gtest.h>

#include "tests/support/job.h"
#include "tests/tools/weft/launch/elastic/store_on_loop.h"
#include "tools/weft/errors.h"

namespace weft::tool::launch::elastic::store_watch_test {
namespace {

using namespace std::chrono_literals;

class StoreWatching : public ::testing::Test, protected testing::StoreOnLoop {
 protected:
  void watch() {
    watch_.emplace(loop, store, "a/", [this](const rpc::StoreChanges& changes) {
      for (const auto& [key, text] : changes.entries) told += " " + key + "=" + text.value_or("none");
    });
  }
  std::string told;
  std::optional<StoreWatch> watch_;
};

TEST_F(StoreWatching, ReportsAllKeysAndThenEachChange) {
  store->set("a/1", "x", {}).get();
  store->set("b/1", "x", {}).get();
  watch();
  EXPECT_EQ(told, "") << "on the loop only";
  loop->turn();
  EXPECT_EQ(told, " a/1=x");
  store->set("a/2", "y", {}).get();
  loop->turn();
  store->remove("a/1").get();
  loop->turn();
  EXPECT_EQ(told, " a/1=x a/2=y a/1=none");
}

TEST_F(StoreWatching, ContinuesAfterALongTimeWithoutChanges) {
  watch();
  pass(1min);
  store->set("a/1", "x", {}).get();
  loop->turn();
  EXPECT_EQ(told, " a/1=x");
}

TEST_F(StoreWatching, RetriesIfTheStoreCannotBeReached) {
  store->trouble = testing::Trouble::unreachable;
  watch();
  pass(1min);
  store->trouble = testing::Trouble::none;
  store->set("a/1", "x", {}).get();
  pass(1s);
  EXPECT_EQ(told, " a/1=x");
}

TEST_F(StoreWatching, LeavesNoRequestBehind) {
  watch();
  loop->turn();
  EXPECT_EQ(store->waiting(), 1U);
  store->set("a/1", "x", {}).get();
  watch_.reset();
  EXPECT_EQ(store->waiting(), 0U);
  pass(1s);
  EXPECT_EQ(told, "");
  store->trouble = testing::Trouble::unreachable;
  watch();
  loop->turn();
  const std::size_t timers = loop->timers();
  watch_.reset();
  EXPECT_EQ(loop->timers() + 1, timers) << "the pause";
}

TEST_F(StoreWatching, MayBeEndedByItsCallback) {
  watch_.emplace(loop, store, "a/", [this](const rpc::StoreChanges&) {
    told += " once";
    watch_.reset();
  });
  store->set("a/1", "x", {}).get();
  pass(1s);
  store->set("a/2", "x", {}).get();
  pass(1s);
  EXPECT_EQ(told, " once");
  EXPECT_EQ(store->waiting(), 0U);
}

TEST(OpenStore, OpensAFileByItsUrl) {
  const test::FileJobStore file;
  const OpenedStore opened = open_store(file.url);
  opened.store->set("a", "x").get();
  EXPECT_EQ(opened.store->try_get("a").get(), "x");
  opened.close();
  EXPECT_EQ(test::kind_of([&] { return opened.store->try_get("a").get(); }), rpc::ErrorKind::shut_down);
}

TEST(OpenStore, AMalformedUrlIsAUsageError) {
  EXPECT_THROW(open_store("file://relative"), UsageError);
  EXPECT_THROW(open_store("etcd://"), UsageError);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::store_watch_test
