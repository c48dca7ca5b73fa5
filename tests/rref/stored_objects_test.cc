#include <weft/rpc/core/handler_pool.h>
#include <weft/rref/stored_objects.h>

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/errors.h"

namespace weft::rref::stored_objects_test {
namespace {

constexpr RRefId one{7, 1}, two{7, 2};

std::exception_ptr fault(const std::string& text) {
  return std::make_exception_ptr(rpc::Error(rpc::ErrorKind::failed_precondition, text));
}

class StoredObjectsTest : public testing::Test {
 protected:
  StoredObjects::Found object(int value = 5) {
    rpc::KeptValue kept;
    kept.value = std::make_shared<int>(value);
    return std::make_shared<StoredObject>(std::move(kept), threads);
  }
  StoredObjects::Done note(const std::string& name) {
    return [this, name](StoredObjects::Found found) {
      told.push_back(name +
                     (found.ok() ? " found" : ": " + test::message_of([&] { std::move(found).get(); })));
    };
  }
  std::shared_ptr<rpc::Executor> threads = std::make_shared<rpc::HandlerPool>(1);
  StoredObjects objects;
  std::vector<std::string> told;
};

TEST_F(StoredObjectsTest, ALateWaiterIsNotifiedAfterTheEarlierOnes) {
  objects.when_alive(one, [this](StoredObjects::Found) {
    EXPECT_TRUE(objects.when_alive(one, note("late")));
    told.push_back("a");
  });
  objects.when_alive(one, note("b"));
  objects.settle(one, object());
  EXPECT_EQ(told, (std::vector<std::string>{"a", "b found", "late found"}));
}

TEST_F(StoredObjectsTest, AWaiterMayRemoveTheObject) {
  objects.when_alive(one, [this](StoredObjects::Found) { objects.remove(one); });
  objects.settle(one, object());
  objects.when_alive(one, note("a"));
  EXPECT_TRUE(told.empty()) << "the id is unknown again";
}

TEST_F(StoredObjectsTest, TheEndNotifiesPresentAndLaterWaiters) {
  objects.when_alive(one, note("a"));
  objects.settle(two, object());
  objects.end(fault("over"));
  EXPECT_TRUE(objects.when_alive(one, note("b")));
  objects.settle(one, object());
  EXPECT_TRUE(objects.when_alive(two, note("c")));
  EXPECT_EQ(told, (std::vector<std::string>{"a: over", "b: over", "c: over"}));
}

}  // namespace
}  // namespace weft::rref::stored_objects_test
