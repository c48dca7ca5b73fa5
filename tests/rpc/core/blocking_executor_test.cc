#include <weft/rpc/core/blocking_executor.h>

#include <gtest/gtest.h>

#include <thread>

namespace weft::rpc::blocking_executor_test {
namespace {

TEST(BlockingExecutor, TheTaskRunsOnTheCallingThread) {
  struct Body {
    static Task<std::thread::id> run(Future<int> later) {
      co_await std::move(later);
      co_return std::this_thread::get_id();
    }
  };
  Promise<int> promise;
  auto future = promise.future();
  std::thread completing([&] { promise.complete(1); });
  EXPECT_EQ(BlockingExecutor().run(Body::run(std::move(future))), std::this_thread::get_id());
  completing.join();
}

TEST(BlockingExecutor, ManyRoundsWithAnotherThread) {
  struct Body {
    static Task<int> run(std::vector<Future<int>> futures) {
      int sum = 0;
      for (auto& future : futures) sum += co_await std::move(future);
      co_return sum;
    }
  };
  std::vector<Promise<int>> promises(1000);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  std::thread other([&] {
    for (auto& promise : promises) promise.complete(1);
  });
  EXPECT_EQ(BlockingExecutor().run(Body::run(std::move(futures))), 1000);
  other.join();
}

}  // namespace
}  // namespace weft::rpc::blocking_executor_test
