#include <weft/rpc/core/when_all.h>

#include <weft/rpc/core/asio_loop.h>

#include <asio/post.hpp>

#include "tests/support/errors.h"

namespace weft::rpc::when_all_test {
namespace {

using namespace test;

TEST(WhenAll, GivesTheValuesInTheGivenOrder) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  auto all = when_all(std::move(futures));
  promises[2].complete(2);
  promises[0].complete(0);
  EXPECT_FALSE(all.ready());
  promises[1].complete(1);
  EXPECT_EQ(all.get(), (std::vector<int>{0, 1, 2}));
}

TEST(WhenAll, WaitsForAllAndFailsWithTheFirstErrorInTheGivenOrder) {
  std::vector<Promise<void>> promises(3);
  std::vector<Future<void>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  auto all = when_all(std::move(futures));
  promises[2].fail(Error(ErrorKind::internal, "third"));
  promises[1].fail(Error(ErrorKind::internal, "second"));
  EXPECT_FALSE(all.ready());
  promises[0].complete(Result<void>{});
  EXPECT_EQ(message_of([&] { return all.get(), 0; }), "second");
}

TEST(WhenAll, OfNoFuturesIsComplete) {
  EXPECT_TRUE(when_all(std::vector<Future<int>>{}).get().empty());
  when_all(std::vector<Future<void>>{}).get();
}

TEST(WhenAll, MoveOnlyValuesPass) {
  std::vector<Future<std::unique_ptr<int>>> futures;
  futures.push_back(Future<std::unique_ptr<int>>::made(std::make_unique<int>(5)));
  EXPECT_EQ(*when_all(std::move(futures)).get().front(), 5);
}

TEST(WhenAll, GetOnTheirLoopIsRefused) {
  asio::io_context io;
  Promise<int> promise(std::make_shared<AsioLoop>(io));
  std::vector<Future<int>> futures;
  futures.push_back(promise.future());
  auto all = when_all(std::move(futures));
  std::optional<ErrorKind> seen;
  asio::post(io, [&] { seen = kind_of([&] { return all.get(); }); });
  io.run();
  EXPECT_EQ(seen, ErrorKind::failed_precondition);
}

TEST(WhenAll, ThreadsMayCompleteThemAtOnce) {
  constexpr std::size_t n = 1000;
  std::vector<Promise<int>> promises(n);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  auto all = when_all(std::move(futures));
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&promises, t] {
      for (std::size_t i = t; i < n; i += 4) promises[i].complete(static_cast<int>(i));
    });
  const auto values = all.get();
  for (auto& thread : threads) thread.join();
  ASSERT_EQ(values.size(), n);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(values[i], static_cast<int>(i));
}

// --- To the first error ---

TEST(WhenAllOrError, GivesTheValuesInTheGivenOrder) {
  std::vector<Promise<int>> promises(2);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  auto all = when_all_or_error(std::move(futures));
  promises[1].complete(1);
  EXPECT_FALSE(all.ready());
  promises[0].complete(0);
  EXPECT_EQ(all.get(), (std::vector<int>{0, 1}));
  EXPECT_TRUE(when_all_or_error(std::vector<Future<int>>{}).get().empty());
  when_all_or_error(std::vector<Future<void>>{}).get();
}

TEST(WhenAllOrError, FailsWithTheEarliestErrorWhileOthersContinue) {
  std::vector<Promise<void>> promises(4);
  std::vector<bool> cancelled(4);
  std::vector<Future<void>> futures;
  for (std::size_t i = 0; i < 4; ++i) {
    promises[i].on_cancel([&cancelled, i] { cancelled[i] = true; });
    futures.push_back(promises[i].future());
  }
  auto all = when_all_or_error(std::move(futures));
  promises[1].complete(Result<void>{});
  promises[3].fail(Error(ErrorKind::internal, "fourth"));
  ASSERT_TRUE(all.ready());
  EXPECT_EQ(message_of([&] { return all.get(), 0; }), "fourth");
  EXPECT_EQ(cancelled, std::vector<bool>(4));
  promises[2].fail(Error(ErrorKind::internal, "third"));  // no consumer gets this error
  promises[0].complete(Result<void>{});
}

TEST(WhenAllOrError, ThreadsMayCompleteAndFailThemAtOnce) {
  for (int round = 0; round < 50; ++round) {
    constexpr std::size_t n = 40;
    std::vector<Promise<int>> promises(n);
    std::vector<Future<int>> futures;
    for (auto& promise : promises) futures.push_back(promise.future());
    auto all = when_all_or_error(std::move(futures));
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t)
      threads.emplace_back([&promises, t] {
        for (std::size_t i = t; i < n; i += 4) {
          if (i % 10 == 0) {
            promises[i].fail(Error(ErrorKind::unavailable, "one of them"));
          } else {
            promises[i].complete(0);
          }
        }
      });
    EXPECT_EQ(kind_of([&] { return all.get(); }), ErrorKind::unavailable);
    for (auto& thread : threads) thread.join();
  }
}

TEST(WhenAll, OfResultsHasEachErrorAtItsIndex) {
  Promise<int> good, bad;
  std::vector<Future<Result<int>>> results;
  results.push_back(good.future().as_result());
  results.push_back(bad.future().as_result());
  auto all = when_all(std::move(results));
  bad.fail(Error(ErrorKind::unavailable, "no way there"));
  good.complete(1);
  auto ends = all.get();
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_EQ(ends[0].value(), 1);
  EXPECT_EQ(kind_of([&] { return ends[1].value(); }), ErrorKind::unavailable);
}

}  // namespace
}  // namespace weft::rpc::when_all_test
