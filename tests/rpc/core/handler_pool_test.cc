#include <weft/rpc/core/handler_pool.h>

#include <weft/rpc/core/loop.h>
#include <weft/rpc/testing/wait.h>

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>

namespace weft::rpc::handler_pool_test {
namespace {

using test::Event;

TEST(HandlerPool, ItsThreadsAreOwned) {
  HandlerPool pool(2);
  std::atomic<int> owned{0}, here{0};
  for (int i = 0; i < 10; ++i)
    pool.post([&] {
      owned += OwnedThread::here() ? 1 : 0;
      here += pool.running_here() ? 1 : 0;
    });
  pool.join();
  EXPECT_EQ(owned, 10);
  EXPECT_EQ(here, 10);
  EXPECT_FALSE(OwnedThread::here());
  EXPECT_FALSE(pool.running_here());
}

// Jobs that wait for each other need a thread each, although the pool has one.
TEST(HandlerPool, RunsOtherJobsWhileAJobBlocks) {
  HandlerPool pool(1);
  const HandlerPool::Blocking elsewhere(pool);  // no thread of the pool
  std::atomic<int> marked{0};
  Event first, second;
  for (int round = 0; round < 2; ++round) {  // the second round uses the threads of the first
    pool.post([&] {
      {
        const HandlerPool::Blocking may_block(pool);
        marked += OwnedThread::here() ? 1 : 0;
        first.wait();
      }
      marked += OwnedThread::here() ? 100 : 0;
    });
    pool.post([&] {
      const HandlerPool::Blocking may_block(pool);
      EXPECT_TRUE(pool.running_here());
      second.wait();
      first.set();
    });
    pool.post([&] { second.set(); });
  }
  pool.join();
  EXPECT_EQ(marked, 200);
}

TEST(HandlerPool, AddsAThreadOnlyIfAJobWaits) {
  HandlerPool pool(1);
  std::set<std::thread::id> threads;
  for (int i = 0; i < 3; ++i) {
    Event ended;
    pool.post([&] {
      {
        const HandlerPool::Blocking may_block(pool);
        threads.insert(std::this_thread::get_id());
      }
      ended.set();
    });
    ended.wait();
  }
  pool.join();
  EXPECT_EQ(threads.size(), 1U);
}

TEST(HandlerPool, RunsJobsAtOnceOnAsManyThreads) {
  HandlerPool pool(2);
  Event a, b;
  pool.post([&] {
    a.set();
    b.wait();
  });
  pool.post([&] {
    a.wait();
    b.set();
  });
  pool.join();
}

TEST(HandlerPool, AJobThatThrowsIsReportedAndLeavesTheThread) {
  HandlerPool pool(1);
  std::vector<std::string> taken;  // by the one thread
  pool.exceptions()->set_handler([&](const std::string& text) { taken.push_back(text); });
  int ran = 0;
  for (int i = 0; i < 2; ++i) {
    pool.post([] { throw std::out_of_range("beyond"); });
    pool.post([&] { ++ran; });
  }
  pool.join();
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(taken, std::vector<std::string>(
                       2, "a task of the handler threads threw an exception, which was dropped: beyond"));
}

TEST(HandlerPool, JoinRunsQueuedJobsAndTheJobsThatTheyPost) {
  HandlerPool pool(2);
  Event go;
  std::atomic<int> ran{0};
  pool.post([&] { go.wait(); });
  struct Chain {
    static void step(HandlerPool& pool, std::atomic<int>& ran, int left) {
      ++ran;
      if (left != 0) pool.post([&pool, &ran, left] { step(pool, ran, left - 1); });
    }
  };
  pool.post([&] { Chain::step(pool, ran, 99); });
  std::thread joiner([&] { pool.join(); });
  go.set();
  joiner.join();
  EXPECT_EQ(ran, 100);
}

TEST(HandlerPool, AfterJoinJobsAreDestroyedByPost) {
  HandlerPool pool(1);
  pool.join();
  auto held = std::make_shared<int>(1);
  bool ran = false;
  pool.post([held, &ran] { ran = true; });
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace weft::rpc::handler_pool_test
