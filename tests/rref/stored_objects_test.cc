#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/testing/wait.h>
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

TEST_F(StoredObjectsTest, AFailedCreationIsReportedToAll) {
  EXPECT_FALSE(objects.when_alive(one, note("a")));
  objects.settle(one, fault("no"));
  EXPECT_TRUE(objects.when_alive(one, note("b")));
  EXPECT_EQ(told, (std::vector<std::string>{"a: no", "b: no"}));
}

TEST_F(StoredObjectsTest, AnObjectThatNeverArrivesFailsItsWaiters) {
  objects.fail(two, fault("lost"));  // no waiter: the failure is not kept
  objects.when_alive(one, note("a"));
  objects.fail(one, fault("lost"));
  objects.settle(one, object());
  objects.fail(one, fault("again"));
  EXPECT_FALSE(objects.when_alive(two, note("b")));
  objects.when_alive(one, note("c"));
  EXPECT_EQ(told, (std::vector<std::string>{"a: lost", "c: lost"}));
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

// The value ends on the threads, after the work that is queued for it.
TEST_F(StoredObjectsTest, AValueIsDestroyedAfterItsQueuedWork) {
  std::vector<std::string> order;  // written on the one thread
  test::Event gate, ended;
  rpc::KeptValue kept;
  kept.value = std::shared_ptr<void>(&order, [&](void*) {
    order.push_back("ended");
    ended.set();
  });
  auto stored = std::make_shared<StoredObject>(std::move(kept), threads);
  stored->turn().post([&] { gate.wait(); });
  stored->turn().post([&] { order.push_back("ran"); });
  objects.settle(one, std::move(stored));
  objects.remove(one);
  gate.set();
  ended.wait();
  EXPECT_EQ(order, (std::vector<std::string>{"ran", "ended"}));
}

}  // namespace
}  // namespace weft::rref::stored_objects_test
