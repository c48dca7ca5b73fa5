#include <weft/rpc/core/task.h>

#include <weft/rpc/core/blocking_executor.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/testing/wait.h>

#include <set>

#include "tests/support/errors.h"

namespace weft::rpc::task_test {
namespace {

using namespace test;

Task<int> give(int x) { co_return x; }
Task<int> await_and_add(Future<int> a, Future<int> b) {
  co_return co_await std::move(a) + co_await std::move(b);
}
Task<> nothing() { co_return; }

TEST(Task, IsLazy) {
  bool began = false;
  struct Body {
    static Task<> run(bool* began) {
      *began = true;
      co_return;
    }
  };
  auto task = Body::run(&began);
  EXPECT_FALSE(began);
  BlockingExecutor().run(std::move(task));
  EXPECT_TRUE(began);
}

TEST(Task, AnEmptyTaskFails) {
  struct Body {
    static Task<int> await(Task<int> task) { co_return co_await std::move(task); }
    static Task<int> await(Future<int> future) { co_return co_await std::move(future); }
  };
  EXPECT_EQ(kind_of([] { BlockingExecutor().run(Task<int>()); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([] { BlockingExecutor().run(Body::await(Task<int>())); }),
            ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([] { BlockingExecutor().run(Body::await(Future<int>())); }),
            ErrorKind::failed_precondition);
}

TEST(Task, ReturnsValuesVoidAndMoveOnlyTypes) {
  struct Body {
    static Task<std::unique_ptr<int>> make() { co_return std::make_unique<int>(4); }
    static Task<int> use() { co_return *co_await make() + co_await give(1); }
  };
  EXPECT_EQ(BlockingExecutor().run(Body::use()), 5);
  BlockingExecutor().run(nothing());
}

TEST(Task, DestroyedUnstartedItReleasesItsArguments) {
  auto held = std::make_shared<int>(1);
  struct Body {
    static Task<int> run(std::shared_ptr<int> held) { co_return *held; }
  };
  {
    auto task = Body::run(held);
    EXPECT_EQ(held.use_count(), 2);
    auto moved = std::move(task);
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Task, ExceptionsPassThroughTheTasksThatAwait) {
  struct Body {
    static Task<int> inner() {
      co_await nothing();
      throw Error(ErrorKind::not_found, "inner");
    }
    static Task<int> middle() { co_return co_await inner(); }
    static Task<std::string> outer() {
      try {
        co_await middle();
      } catch (const Error& error) {
        co_return error.what();
      }
      co_return "no error";
    }
  };
  EXPECT_EQ(BlockingExecutor().run(Body::outer()), "inner");
  EXPECT_EQ(kind_of([] { return BlockingExecutor().run(Body::middle()); }), ErrorKind::not_found);
}

TEST(Task, FutureErrorsAreThrownInIt) {
  auto failed = Future<int>::made(std::make_exception_ptr(Error(ErrorKind::peer_lost, "gone")));
  EXPECT_EQ(
      kind_of([&] { return BlockingExecutor().run(await_and_add(Future<int>::made(1), std::move(failed))); }),
      ErrorKind::peer_lost);
}

// Without optimisation and under sanitizers, compilers do not make tail calls of symmetric transfers.
Task<std::string> describe(Future<int> future) {
  Result<int> result = co_await std::move(future).as_result();
  if (result.ok()) co_return "value " + std::to_string(result.value());
  const std::exception_ptr error = result.error();
  co_return "error " + std::string(to_string(*kind_of([&] { std::rethrow_exception(error); })));
}
TEST(Task, AwaitsAResultWithoutAnException) {
  BlockingExecutor executor;
  EXPECT_EQ(executor.run(describe(Future<int>::made(7))), "value 7");
  Promise<int> promise;
  auto waiting = describe(promise.future());
  std::thread other([&] { promise.fail(Error(ErrorKind::peer_lost, "gone")); });
  EXPECT_EQ(executor.run(std::move(waiting)), "error peer_lost");
  other.join();
}

TEST(Task, AwaitingManyTasksNeedsNoStack) {
  struct Body {
    static Task<long> many(int n) {
      long sum = 0;
      for (int i = 0; i < n; ++i) sum += co_await give(1);
      co_return sum;
    }
    static Task<int> deep(int n) {
      if (n == 0) co_return 0;  // not ?:, whose branches g++ 12 both awaits
      co_return 1 + co_await deep(n - 1);
    }
  };
  EXPECT_EQ(BlockingExecutor().run(Body::many(300'000)), 300'000);
  EXPECT_EQ(BlockingExecutor().run(Body::deep(30'000)), 30'000);
}

TEST(Task, ResumesOnlyOnItsExecutor) {
  struct Body {
    static Task<std::set<std::thread::id>> run(std::vector<Future<int>> futures) {
      std::set<std::thread::id> threads{std::this_thread::get_id()};
      for (auto& future : futures) {
        co_await std::move(future);
        threads.insert(std::this_thread::get_id());
        co_await nothing();
        threads.insert(std::this_thread::get_id());
      }
      co_return threads;
    }
  };
  std::vector<Promise<int>> promises(50);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  HandlerPool pool(1);
  auto threads = Body::run(std::move(futures)).start(pool);
  std::thread other([&] {
    for (auto& promise : promises) promise.complete(1);
  });
  const auto seen = threads.get();
  other.join();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_NE(*seen.begin(), std::this_thread::get_id());
}

TEST(Task, ManyThreadsMayCompleteTheAwaitedFutures) {
  constexpr int n = 500;
  struct Body {
    static Task<int> run(std::vector<Future<int>> futures) {
      int sum = 0;
      for (auto& future : futures) sum += co_await std::move(future);
      co_return sum;
    }
  };
  HandlerPool pool(4);
  std::vector<Future<int>> sums;
  std::vector<std::vector<Promise<int>>> promises;
  for (int t = 0; t < 4; ++t) {
    auto& own = promises.emplace_back(n);
    std::vector<Future<int>> futures;
    for (auto& promise : own) futures.push_back(promise.future());
    sums.push_back(Body::run(std::move(futures)).start(pool));
  }
  std::vector<std::thread> threads;
  for (auto& own : promises)
    threads.emplace_back([&own] {
      for (auto& promise : own) promise.complete(1);
    });
  for (auto& sum : sums) EXPECT_EQ(sum.get(), n);
  for (auto& thread : threads) thread.join();
}

// --- Contexts ---

struct Recorded final : ContextSwitch {
  void enter() override { steps += 'e'; }
  void leave() override { steps += 'l'; }
  std::string steps;
};

struct ContextBody {
  static Task<int> run(Future<int> ready, Future<int> later, Recorded* context) {
    context->steps += '1';
    co_await std::move(ready);  // does not suspend
    context->steps += '2';
    co_await give(1);  // a separate task in the same context
    context->steps += '3';
    co_await nested(std::move(later), context);
    context->steps += '6';
    co_return 0;
  }
  static Task<> nested(Future<int> later, Recorded* context) {
    context->steps += '4';
    co_await std::move(later);
    context->steps += '5';
  }
};

TEST(Task, ItsContextIsActiveExactlyWhileItRuns) {
  HandlerPool pool(1);
  Recorded context;
  Promise<int> later;
  auto done = ContextBody::run(Future<int>::made(1), later.future(), &context).start(pool, &context);
  Event idle;
  pool.post([&] { idle.set(); });  // behind the start: the task has suspended
  idle.wait();
  EXPECT_EQ(context.steps, "e1234l");
  later.complete(1);
  done.get();
  EXPECT_EQ(context.steps, "e1234le56l");
}

TEST(Task, ItsContextIsLeftWhenItThrows) {
  struct Body {
    static Task<> fail() {
      co_await nothing();
      throw Error(ErrorKind::internal, "x");
    }
  };
  Recorded context;
  HandlerPool pool(1);
  EXPECT_THROW(Body::fail().start(pool, &context).get(), Error);
  EXPECT_EQ(context.steps, "el");
}

// --- Ends ---

TEST(Task, StartedOnAnEndedExecutorItIsAborted) {
  HandlerPool pool(1);
  pool.join();
  auto future = give(1).start(pool);
  EXPECT_EQ(kind_of([&] { return future.get(); }), ErrorKind::aborted);
}

TEST(Task, SuspendedWhenItsExecutorEndsItIsDestroyedWithAllThatItAwaits) {
  auto held = std::make_shared<int>(1);
  struct Body {
    static Task<int> inner(std::shared_ptr<int> held, Future<int> later) {
      co_await std::move(later);
      co_return *held;
    }
    static Task<int> outer(std::shared_ptr<int> held, Future<int> later) {
      co_return co_await inner(held, std::move(later)) + *held;
    }
  };
  HandlerPool pool(1);
  Promise<int> later;
  auto future = Body::outer(held, later.future()).start(pool);
  pool.join();  // the task is suspended now, because its start was queued before
  EXPECT_GT(held.use_count(), 1);
  later.complete(1);  // its resumption is dropped
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(kind_of([&] { return future.get(); }), ErrorKind::aborted);
}

}  // namespace
}  // namespace weft::rpc::task_test
