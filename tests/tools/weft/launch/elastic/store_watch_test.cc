#include "tools/weft/launch/elastic/store_watch.h"

#include <gtest/gtest.h>

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

TEST_F(StoreWatching, RetriesIfTheStoreCannotBeReached) {
  store->trouble = testing::Trouble::unreachable;
  watch();
  pass(1min);
  store->trouble = testing::Trouble::none;
  store->set("a/1", "x", {}).get();
  pass(1s);
  EXPECT_EQ(told, " a/1=x");
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

TEST(OpenStore, AMalformedUrlIsAUsageError) {
  EXPECT_THROW(open_store("file://relative"), UsageError);
  EXPECT_THROW(open_store("etcd://"), UsageError);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::store_watch_test
