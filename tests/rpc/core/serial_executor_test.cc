#include <weft/rpc/core/serial_executor.h>

#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/testing/wait.h>

#include <gtest/gtest.h>

namespace weft::rpc::serial_executor_test {
namespace {

using test::Event;

TEST(SerialExecutor, RunsInOrderOneAtATime) {
  HandlerPool pool(4);
  SerialExecutor serial(pool);
  std::atomic<int> inside{0};
  std::vector<int> order;  // needs no lock, because the executor runs one job at a time
  Event done;
  constexpr int n = 2000;
  for (int i = 0; i < n; ++i)
    serial.post([&, i] {
      EXPECT_EQ(++inside, 1);
      order.push_back(i);
      --inside;
      if (i == n - 1) done.set();
    });
  done.wait();
  pool.join();
  ASSERT_EQ(order.size(), std::size_t{n});
  for (int i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(SerialExecutor, ManyMayPost) {
  HandlerPool pool(4);
  SerialExecutor serial(pool);
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) serial.post([&] { ++count; });
    });
  for (auto& thread : threads) thread.join();
  pool.join();
  EXPECT_EQ(count, 4000);
}

TEST(SerialExecutor, TheNextTaskRunsWhileOneIsSuspended) {
  struct Body {
    static Task<> first(Future<int> later, std::string* log) {
      *log += 'a';
      co_await std::move(later);
      *log += 'c';
    }
    static Task<> second(std::string* log) {
      *log += 'b';
      co_return;
    }
  };
  HandlerPool pool(2);
  SerialExecutor serial(pool);
  std::string log;
  Promise<int> later;
  auto first = Body::first(later.future(), &log).start(serial);
  Body::second(&log).start(serial).get();
  EXPECT_EQ(log, "ab");
  later.complete(1);
  first.get();
  EXPECT_EQ(log, "abc");
}

TEST(SerialExecutor, OneObjectDoesNotKeepAThreadFromOthers) {
  HandlerPool pool(1);
  SerialExecutor busy(pool), other(pool);
  std::string log;
  Event go, done;
  pool.post([&] { go.wait(); });  // both queues fill first
  for (int i = 0; i < 3; ++i) busy.post([&] { log += 'b'; });
  other.post([&] { log += 'o'; });
  busy.post([&] { done.set(); });
  go.set();
  done.wait();
  EXPECT_EQ(log, "bobb");
}

TEST(SerialExecutor, MayBeDestroyedWithJobsQueued) {
  HandlerPool pool(1);
  Event go;
  int ran = 0;
  {
    SerialExecutor serial(pool);
    serial.post([&] { go.wait(); });
    for (int i = 0; i < 3; ++i) serial.post([&] { ++ran; });
  }
  go.set();
  pool.join();
  EXPECT_EQ(ran, 3);
}

// When an agent ends, the jobs of an object's executor are destroyed with the threads. The jobs hold the
// executor.
TEST(SerialExecutor, DropsItsJobsIfTheThreadsHaveEnded) {
  HandlerPool pool(1);
  pool.join();
  auto serial = std::make_shared<SerialExecutor>(pool);
  std::weak_ptr<SerialExecutor> weak = serial;
  bool ran = false;
  serial->post([serial, &ran] { ran = true; });
  serial->post([serial, &ran] { ran = true; });
  serial.reset();
  EXPECT_TRUE(weak.expired());
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace weft::rpc::serial_executor_test
