#include <weft/rpc/core/shared_future.h>

#include <string>
#include <thread>

#include "tests/support/errors.h"

namespace weft::rpc::shared_future_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(SharedFuture, EachConsumerHasTheValue) {
  Promise<std::string> promise;
  const SharedFuture shared(promise.future());
  auto before = shared.future();
  std::string continued;
  shared.future().then([&](Result<std::string>&& result) { continued = std::move(result).get(); });
  EXPECT_FALSE(shared.ready());
  promise.complete(std::string("done"));
  EXPECT_TRUE(shared.ready());
  EXPECT_EQ(before.get(), "done");
  EXPECT_EQ(continued, "done");
  EXPECT_EQ(shared.get(), "done");
  EXPECT_EQ(SharedFuture(shared).get(), "done");
}

TEST(SharedFuture, EachConsumerHasTheError) {
  Promise<void> promise;
  const SharedFuture shared(promise.future());
  auto before = shared.future();
  promise.fail(Error(ErrorKind::not_found, "nothing there"));
  EXPECT_EQ(kind_of([&] { before.get(); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { shared.get(); }), ErrorKind::not_found);
}

TEST(SharedFuture, ThreadsWaitTogether) {
  for (int round = 0; round < 100; ++round) {
    Promise<int> promise;
    const SharedFuture shared(promise.future());
    std::atomic<int> sum{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&sum, shared] { sum += shared.get(); });
    promise.complete(round);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(sum, 4 * round);
  }
}

TEST(SharedFuture, OneConsumerStopsWaitingAlone) {
  Promise<int> promise;
  bool cancelled = false;
  promise.on_cancel([&] { cancelled = true; });
  const SharedFuture shared(promise.future());
  EXPECT_EQ(kind_of([&] { shared.get(1ms); }), ErrorKind::deadline_exceeded);
  auto other = shared.future();
  shared.future().cancel();
  EXPECT_FALSE(cancelled);
  shared.cancel();
  EXPECT_TRUE(cancelled);
  promise.complete(3);
  EXPECT_EQ(other.get(), 3);
}

TEST(SharedFuture, AnEmptyOneThrows) {
  const SharedFuture<int> empty;
  EXPECT_FALSE(empty.valid());
  EXPECT_EQ(kind_of([&] { empty.get(); }), ErrorKind::failed_precondition);
}

}  // namespace
}  // namespace weft::rpc::shared_future_test
