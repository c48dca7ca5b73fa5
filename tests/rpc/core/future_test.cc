#include <weft/rpc/core/future.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/testing/wait.h>

#include <asio/awaitable.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>

#include <future>

#include "tests/support/errors.h"

namespace weft::rpc::future_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(Future, GetReturnsAnAvailableValue) {
  EXPECT_EQ(Future<int>::made(3).get(), 3);
  EXPECT_NO_THROW(Future<void>::made(Result<void>{}).get());
  EXPECT_EQ(*Future<std::unique_ptr<int>>::made(std::make_unique<int>(4)).get(), 4);
}

TEST(Future, GetWaitsForAnotherThread) {
  Promise<std::string> promise;
  auto future = promise.future();
  EXPECT_FALSE(future.ready());
  std::thread other([&] { promise.complete(std::string("done")); });
  EXPECT_EQ(future.get(), "done");
  EXPECT_FALSE(future.valid());
  other.join();
}

TEST(Future, GetThrowsTheError) {
  Promise<int> promise;
  auto future = promise.future();
  promise.fail(std::out_of_range("beyond"));
  EXPECT_TRUE(future.ready());
  EXPECT_THROW(future.get(), std::out_of_range);
}

TEST(Future, ABrokenPromiseIsAborted) {
  Future<int> future;
  {
    Promise<int> promise;
    future = promise.future();
  }
  EXPECT_EQ(kind_of([&] { return future.get(); }), ErrorKind::aborted);
  Promise<int> replaced;
  auto first = replaced.future();
  replaced = Promise<int>();
  EXPECT_EQ(kind_of([&] { return first.get(); }), ErrorKind::aborted);
}

TEST(Future, AnEmptyFutureFails) {
  Future<int> used = Future<int>::made(3);
  EXPECT_EQ(used.get(), 3);
  EXPECT_FALSE(used.valid());
  EXPECT_EQ(kind_of([&] { return used.get(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { return used.ready(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { used.then([](Result<int>&&) {}); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { used.async_get([](std::exception_ptr, int) {}); }), ErrorKind::failed_precondition);
  used.cancel();
}

TEST(Future, ThenRunsOnTheCompletingThread) {
  Promise<int> promise;
  std::thread::id ran;
  promise.future().then([&](Result<int>&& result) {
    EXPECT_EQ(result.value(), 5);
    ran = std::this_thread::get_id();
  });
  EXPECT_EQ(ran, std::thread::id());
  std::thread other([&] { promise.complete(5); });
  const auto expected = other.get_id();
  other.join();
  EXPECT_EQ(ran, expected);
}

TEST(Future, ThenRunsAtOnceOnACompletedFuture) {
  bool ran = false;
  Future<int>::made(1).then([&](Result<int>&&) { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(Future, ThenReturnsAFutureOfTheContinuationsResult) {
  Promise<int> promise;
  auto text = promise.future().then([](Result<int>&& n) { return n.value() * 2; }).then([](Result<int>&& n) {
    return std::to_string(n.value());
  });
  promise.complete(21);
  EXPECT_EQ(text.get(), "42");
}

TEST(Future, ThenRunsOnItsExecutor) {
  HandlerPool pool(1);
  const auto here = [](auto&&) { return std::this_thread::get_id(); };
  Promise<int> promise;
  auto later = promise.future().then(pool, here);
  promise.complete(5);
  const auto thread = later.get();
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(Future<int>::made(3).then(pool, here).get(), thread);
  auto failed =
      Future<int>::made(3).then(pool, [](auto&&) -> int { throw Error(ErrorKind::not_found, "gone"); });
  EXPECT_EQ(kind_of([&] { return failed.get(); }), ErrorKind::not_found);
  std::promise<void> reported;
  pool.exceptions()->set_handler([&](const std::string&) { reported.set_value(); });
  Future<int>::made(3).then(pool, [](auto&&) { throw Error(ErrorKind::not_found, "gone"); });
  reported.get_future().wait();
}

TEST(Future, AnExceptionInThenFailsTheNextFuture) {
  auto next =
      Future<int>::made(1).then([](Result<int>&&) -> int { throw Error(ErrorKind::not_found, "gone"); });
  EXPECT_EQ(kind_of([&] { return next.get(); }), ErrorKind::not_found);
}

TEST(Future, ABrokenPromiseRunsThen) {
  std::optional<ErrorKind> seen;
  {
    Promise<int> promise;
    promise.future().then([&](Result<int>&& result) { seen = kind_of([&] { return result.value(); }); });
  }
  EXPECT_EQ(seen, ErrorKind::aborted);
}

TEST(Future, CancelRequestsOnceInFlightAndNotAfterwards) {
  int asked = 0;
  Promise<int> promise;
  promise.on_cancel([&] { ++asked; });
  auto future = promise.future();
  future.cancel();
  EXPECT_EQ(asked, 1);
  promise.complete(1);
  future.cancel();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(future.get(), 1);  // cancelling is a request, which this promise ignored
  Future<int>().cancel();      // nothing to cancel
}

TEST(Future, DestroyingDetaches) {
  int asked = 0;
  bool went_on = false;
  Promise<int> promise;
  promise.on_cancel([&] { ++asked; });
  {
    auto chained = promise.future().then([&](Result<int>&& n) {
      went_on = true;
      return n.value();
    });
  }
  promise.complete(1);
  EXPECT_TRUE(went_on);
  EXPECT_EQ(asked, 0);
}

// Whichever of the two ends comes first, the continuation runs once and sees the value.
TEST(Future, ThenAndCompleteMayRace) {
  constexpr int rounds = 2000;
  std::vector<Promise<int>> promises(rounds);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  std::atomic<int> at{-1};
  std::atomic<int> sum{0};
  std::thread other([&] {
    for (int i = 0; i < rounds; ++i) {
      while (at.load() < i) std::this_thread::yield();
      promises[static_cast<std::size_t>(i)].complete(1);
    }
  });
  for (int i = 0; i < rounds; ++i) {
    at = i;
    futures[static_cast<std::size_t>(i)].then([&](Result<int>&& n) { sum += n.value(); });
  }
  other.join();
  EXPECT_EQ(sum, rounds);
}

// --- Waiting for a limited time ---

TEST(Future, GetWithATimeoutReturnsAValueThatArrivesInTime) {
  EXPECT_EQ(Future<int>::made(3).get(0ns), 3) << "what is there needs no time";
  Promise<std::string> promise;
  auto future = promise.future();
  std::thread other([&] { promise.complete(std::string("done")); });
  EXPECT_EQ(future.get(test::too_long), "done");
  EXPECT_FALSE(future.valid());
  other.join();
  Promise<void> failing;
  auto failed = failing.future();
  std::thread third([&] { failing.fail(std::out_of_range("beyond")); });
  EXPECT_THROW(failed.get(std::chrono::nanoseconds::max()), std::out_of_range);
  third.join();
  EXPECT_EQ(kind_of([] { return Future<int>().get(1s); }), ErrorKind::failed_precondition);
}

TEST(Future, TheFutureIsUsableAfterATimeout) {
  int asked = 0;
  Promise<int> promise;
  promise.on_cancel([&] { ++asked; });
  auto future = promise.future();
  test::expect_error([&] { return future.get(2ms); }, ErrorKind::deadline_exceeded,
                     test::whole("get(): no result within the timeout of 2 ms; the operation continues: wait "
                                 "again, or cancel() it"));
  EXPECT_EQ(kind_of([&] { return future.get(-1s); }), ErrorKind::deadline_exceeded);
  EXPECT_EQ(asked, 0) << "the work goes on";
  ASSERT_TRUE(future.valid());
  EXPECT_FALSE(future.ready());
  future.cancel();
  EXPECT_EQ(asked, 1);
  auto next = future.then([](Result<int>&& n) { return n.value() + 1; });
  promise.complete(2);
  EXPECT_EQ(next.get(1s), 3);
}

TEST(Future, TheTimeoutNamesTheWorkThroughContinuations) {
  Promise<int> promise;
  promise.on_request([](WorkRequest) { return std::string("worker1: market.last"); });
  auto future = promise.future().then([](Result<int>&& n) { return n.value(); });
  auto result = std::move(future).as_result();
  EXPECT_EQ(test::message_of([&] { return result.get(0ns); }),
            "worker1: market.last: get(): no result within the timeout of 0 ms; the operation continues: "
            "wait again, "
            "or cancel() it");
  promise.complete(1);
  EXPECT_EQ(result.get().get(), 1);
}

// The result arrives at about the end of the timeout: this wait returns it, or the next one does.
TEST(Future, TheTimeoutAndTheResultMayRace) {
  constexpr std::size_t rounds = 2000;
  std::vector<Promise<std::size_t>> promises(rounds);
  std::vector<Future<std::size_t>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  std::atomic<std::size_t> at{0};
  std::thread other([&] {
    for (std::size_t i = 0; i < rounds; ++i) {
      while (at.load() <= i) std::this_thread::yield();
      promises[i].complete(std::size_t{i});
    }
  });
  std::size_t late = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    at = i + 1;
    for (;;) {
      try {
        EXPECT_EQ(futures[i].get(std::chrono::nanoseconds(i % 5 * 200)), i);
        break;
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::deadline_exceeded);
        ASSERT_TRUE(futures[i].valid());
        ++late;
      }
    }
    EXPECT_FALSE(futures[i].valid());
  }
  other.join();
  std::printf("%zu waits were too short\n", late);
}

// --- Results as values ---

TEST(Future, AsResultContainsTheValueOrTheError) {
  Promise<int> good, bad;
  auto value = good.future().as_result();
  auto error = bad.future().as_result();
  good.complete(4);
  bad.fail(Error(ErrorKind::not_found, "no such thing"));
  EXPECT_EQ(value.get().get(), 4);
  Result<int> failed = error.get();
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(kind_of([&] { return failed.value(); }), ErrorKind::not_found);
  EXPECT_TRUE(Future<void>::made(Result<void>{}).as_result().get().ok());
  EXPECT_EQ(kind_of([] { return Future<int>().as_result(); }), ErrorKind::failed_precondition);
  Result<std::unique_ptr<int>> moved =
      Future<std::unique_ptr<int>>::made(std::make_unique<int>(5)).as_result().get();
  EXPECT_EQ(*std::move(moved).get(), 5);
}

TEST(Future, AsResultForwardsCancellationAndABrokenPromise) {
  int asked = 0;
  auto promise = std::make_optional<Promise<int>>();
  promise->on_cancel([&] { ++asked; });
  auto result = promise->future().as_result();
  result.cancel();
  EXPECT_EQ(asked, 1);
  promise.reset();
  Result<int> broken = result.get();
  EXPECT_EQ(kind_of([&] { return broken.value(); }), ErrorKind::aborted);
}

// --- Threads that must not wait ---

TEST(Future, GetOnAnAgentsThreadIsRefusedUntilTheValueIsAvailable) {
  for (const bool with_timeout : {false, true}) {
    Promise<int> promise;
    auto future = promise.future();
    const auto get = [&] { return with_timeout ? future.get(1h) : future.get(); };
    std::thread handler([&] {
      OwnedThread mark;
      EXPECT_EQ(kind_of(get), ErrorKind::failed_precondition) << with_timeout;
    });
    handler.join();
    ASSERT_TRUE(future.valid());
    promise.complete(2);
    std::thread another([&] {
      OwnedThread mark;
      EXPECT_EQ(get(), 2) << with_timeout;
    });
    another.join();
  }
}

TEST(Future, GetOnItsLoopIsRefused) {
  auto loop = std::make_shared<AsioLoop>();
  auto promise = std::make_shared<Promise<int>>(loop);
  Handover<std::optional<ErrorKind>> seen;
  loop->post([&] {
    auto future = promise->future();
    seen.give(kind_of([&] { return future.get(); }));
  });
  EXPECT_EQ(seen.take(), ErrorKind::failed_precondition);
  loop->stop();
}

TEST(Future, GetOnTheProgramsIoContextIsRefused) {
  asio::io_context io;
  Promise<int> promise(std::make_shared<AsioLoop>(io));
  auto future =
      promise.future().then([](Result<int>&& n) { return n.value(); });  // the continuation keeps the loop
  std::optional<ErrorKind> seen;
  asio::post(io, [&] { seen = kind_of([&] { return future.get(); }); });
  io.run();
  EXPECT_EQ(seen, ErrorKind::failed_precondition);
}

// --- Completion tokens ---

TEST(Future, AsyncGetCallsBackOnTheHandlersExecutor) {
  asio::thread_pool pool(1);
  Promise<int> promise;
  Handover<std::pair<int, bool>> seen;
  promise.future().async_get(
      asio::bind_executor(pool.get_executor(), [&](std::exception_ptr error, int value) {
        EXPECT_EQ(error, nullptr);
        seen.give({value, pool.get_executor().running_in_this_thread()});
      }));
  promise.complete(9);
  EXPECT_EQ(seen.take(), std::pair(9, true));
}

TEST(Future, AsyncGetHandsOverTheError) {
  bool failed = false, called = false;
  Promise<void> promise;
  promise.future().async_get([&](std::exception_ptr error) { failed = called = error != nullptr; });
  promise.fail(Error(ErrorKind::cancelled, "no"));
  EXPECT_TRUE(called && failed);
}

asio::awaitable<int> sum(Future<int> a, Future<void> b, Future<int> failing) {
  int total = co_await a.async_get(asio::use_awaitable);
  co_await b.async_get(asio::use_awaitable);
  try {
    total += co_await failing.async_get(asio::use_awaitable);
  } catch (const Error& error) {
    total += error.kind() == ErrorKind::unavailable ? 1 : 100;
  }
  co_return total;
}

TEST(Future, AsioCoroutinesAwaitIt) {
  asio::io_context io;
  Promise<int> a, failing;
  Promise<void> b;
  int total = 0;
  asio::co_spawn(io, sum(a.future(), b.future(), failing.future()), [&](std::exception_ptr error, int value) {
    EXPECT_EQ(error, nullptr);
    total = value;
  });
  std::thread other([&] {  // run() waits for it: the pending operation counts as work
    a.complete(20);
    b.complete(Result<void>{});
    failing.fail(Error(ErrorKind::unavailable, "not now"));
  });
  io.run();
  other.join();
  EXPECT_EQ(total, 21);
}

// --- Cancelled by its token ---

// An async_get() on `io` that a signal can cancel, and its result.
struct SlottedGet {
  explicit SlottedGet(Future<int> future) {
    future.async_get(asio::bind_cancellation_slot(
        signal.slot(), asio::bind_executor(io, [this](std::exception_ptr error, int value) {
          result = error != nullptr ? Result<int>(error) : Result<int>(value);
        })));
  }
  std::optional<ErrorKind> kind() {
    return kind_of([&] { return result.value().value(); });
  }
  asio::io_context io;
  asio::cancellation_signal signal;
  std::optional<Result<int>> result;
};

TEST(Future, AsyncGetIsCancelledThoughTheWorkContinues) {
  for (const auto type : {asio::cancellation_type::terminal, asio::cancellation_type::partial}) {
    int asked = 0;
    Promise<int> promise;
    promise.on_cancel([&] { ++asked; });
    SlottedGet get(promise.future());
    get.signal.emit(asio::cancellation_type::total);
    EXPECT_EQ(asked, 0) << "a call may have had effects";
    get.signal.emit(type);
    EXPECT_EQ(asked, 1);
    EXPECT_FALSE(get.result) << "a handler does not run within the signal";
    get.io.run();  // returns: the work holds the io_context no longer
    EXPECT_EQ(get.kind(), ErrorKind::cancelled);
    get.signal.emit(type);
    promise.complete(1);
    get.io.restart();
    EXPECT_EQ(get.io.run(), 0U) << "it completes once";
  }
}

TEST(Future, ACancelledAsyncGetReportsTheWorksOwnErrorIfItIsKnown) {
  Promise<int> promise;
  promise.on_cancel([&] { promise.fail(Error(ErrorKind::peer_lost, "gone")); });
  SlottedGet get(promise.future());
  get.signal.emit(asio::cancellation_type::terminal);
  EXPECT_FALSE(get.result);
  get.io.run();
  EXPECT_EQ(get.kind(), ErrorKind::peer_lost);
}

TEST(Future, CancellingAfterCompletionHasNoEffect) {
  Promise<int> promise;
  SlottedGet get(promise.future());
  promise.complete(4);
  get.signal.emit(asio::cancellation_type::terminal);
  get.io.run();
  ASSERT_TRUE(get.result);
  EXPECT_EQ(get.result->value(), 4);
}

// --- Continuations that throw ---

TEST(Future, AnExceptionOfAContinuationIsReportedToItsLoop) {
  const auto loop = std::make_shared<AsioLoop>();
  std::vector<std::string> taken;
  loop->exceptions()->set_handler([&](const std::string& text) { taken.push_back(text); });
  const auto careless = [](Result<int>&&) { throw std::out_of_range("beyond"); };
  Promise<int> before(loop), after(loop);
  before.future().then(careless);
  EXPECT_NO_THROW(before.complete(1));
  auto future = after.future();
  after.complete(2);
  EXPECT_NO_THROW(future.then(careless));
  EXPECT_EQ(taken,
            std::vector<std::string>(2, "a continuation threw an exception, which was dropped: beyond"));
}

TEST(Future, AnExceptionWithoutALoopIsPrintedToStderr) {
  testing::internal::CaptureStderr();
  Future<int>::made(1).then([](Result<int>&&) { throw 5; });
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "weft: a continuation threw an exception, which was dropped: an exception that is not a "
            "std::exception\n");
}

}  // namespace
}  // namespace weft::rpc::future_test
