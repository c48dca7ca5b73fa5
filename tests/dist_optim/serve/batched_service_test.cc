// A batched service behind an agent. A gate holds its function, so that the tests decide what waits.
#include <weft/dist_optim/serve/batched_service.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/transport/in_process.h>

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "tests/support/errors.h"

namespace weft::dist_optim::batched_service_test {
namespace {

using rpc::ErrorKind;
using std::chrono::milliseconds;

// Holds batches until it is opened, and counts those that it holds.
class Gate {
 public:
  void pass(std::size_t requests) {
    std::unique_lock lock(mutex_);
    sizes_.push_back(requests);
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_batches(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sizes_.size() >= count; });
  }
  std::vector<std::size_t> sizes() {
    const std::lock_guard lock(mutex_);
    return sizes_;
  }
  void computed(int number) {
    const std::lock_guard lock(mutex_);
    order_.push_back(number);
  }
  std::vector<int> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  std::vector<std::size_t> sizes_;
  std::vector<int> order_;  // of computed numbers
};

using Squares = BatchedService<"squares", int, int>;

class BatchedServices : public testing::Test {
 protected:
  ~BatchedServices() override { gate.open(); }

  void serve(BatchOptions<int> options) {
    service = batched<"squares">(
        [this](std::vector<int> numbers) {
          gate.pass(numbers.size());
          std::vector<rpc::Result<int>> squares;
          for (const int number : numbers) {
            if (number == 666) throw std::runtime_error("no such number");
            if (number < 0) {
              squares.emplace_back(rpc::Error(ErrorKind::invalid_argument, "a negative number"));
            } else {
              gate.computed(number);
              squares.emplace_back(number * number);
            }
          }
          if (numbers.front() == 999) squares.pop_back();
          return squares;
        },
        options);
    agent.serve(service);
  }
  rpc::Future<int> ask(int number, rpc::CallOptions options = {}) {
    return client.peer(agent.addresses().front()).with(options).call<&Squares::run>(number);
  }
  // Returns when the service has this many requests in its queue.
  void wait_until_queued(std::size_t count) {
    while (service->stats().waiting < count) std::this_thread::yield();
  }

  Gate gate;
  std::shared_ptr<Squares> service;
  rpc::Agent agent{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  rpc::Agent client{{.name = "client"}};
};

TEST_F(BatchedServices, AnswerManyCallsWithOneRun) {
  serve({.max_batch = 8, .max_delay = std::chrono::hours(1)});
  gate.open();
  std::vector<rpc::Future<int>> answers;
  for (int i = 0; i < 16; ++i) answers.push_back(ask(i));
  const std::vector<int> squares = rpc::when_all(std::move(answers)).get();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(squares[static_cast<std::size_t>(i)], i * i);
  EXPECT_EQ(gate.sizes(), (std::vector<std::size_t>{8, 8}));
  const BatchStats stats = client.peer(agent.addresses().front()).call<&Squares::stats>().get();
  EXPECT_EQ(stats.requests, 16U);
  EXPECT_EQ(stats.batches, 2U);
  EXPECT_EQ(stats.failed, 0U);
  EXPECT_EQ(stats.sizes, (std::vector<std::uint64_t>{0, 0, 0, 2}));
}

TEST_F(BatchedServices, ASingleRequestWaitsForTheDelayAlone) {
  serve({.max_delay = milliseconds(1)});
  gate.open();
  EXPECT_EQ(ask(7).get(), 49);
  EXPECT_EQ(gate.sizes(), std::vector<std::size_t>{1});
}

TEST_F(BatchedServices, RequestsThatArriveDuringARunFormTheNextBatch) {
  serve({.max_delay = milliseconds(0)});
  auto first = ask(1);
  gate.wait_for_batches(1);
  std::vector<rpc::Future<int>> others;
  for (int i = 0; i < 5; ++i) others.push_back(ask(i));
  wait_until_queued(5);
  gate.open();
  rpc::when_all(std::move(others)).get();
  EXPECT_EQ(gate.sizes(), (std::vector<std::size_t>{1, 5}));
}

TEST_F(BatchedServices, HigherPrioritiesRunFirst) {
  serve({.max_batch = 2, .max_delay = milliseconds(0), .priority = [](const int& n) { return n / 10; }});
  auto first = ask(1);
  gate.wait_for_batches(1);
  std::vector<rpc::Future<int>> others;
  for (const int number : {2, 11, 3, 12}) {
    others.push_back(ask(number));
    wait_until_queued(others.size());
  }
  gate.open();
  rpc::when_all(std::move(others)).get();
  EXPECT_EQ(gate.order(), (std::vector<int>{1, 11, 12, 2, 3}));
}

TEST_F(BatchedServices, AFullQueueRefusesRequests) {
  serve({.max_batch = 1, .max_delay = milliseconds(0), .max_queued = 2});
  auto first = ask(1);
  gate.wait_for_batches(1);
  auto second = ask(2), third = ask(3);
  wait_until_queued(2);
  test::expect_error([&] { ask(4).get(); }, ErrorKind::resource_exhausted,
                     "2 requests wait, expected fewer than 2 (max_queued)");
  EXPECT_EQ(service->stats().shed, 1U);
  gate.open();
  EXPECT_EQ(second.get() + third.get(), 13);
}

TEST_F(BatchedServices, ARequestWhoseDeadlineHasPassedIsNotComputed) {
  serve({.max_batch = 1, .max_delay = milliseconds(0)});
  auto first = ask(1);
  gate.wait_for_batches(1);
  test::expect_error([&] { ask(2, {.timeout = milliseconds(20)}).get(); }, ErrorKind::deadline_exceeded);
  auto third = ask(3);
  wait_until_queued(2);  // so the message that ends the second call has arrived, too
  gate.open();
  EXPECT_EQ(third.get(), 9);
  EXPECT_EQ(gate.order(), (std::vector<int>{1, 3}));
  EXPECT_EQ(service->stats().dropped, 1U);
}

TEST_F(BatchedServices, ACancelledRequestIsNotComputed) {
  serve({.max_batch = 1, .max_delay = milliseconds(0)});
  auto first = ask(1);
  gate.wait_for_batches(1);
  auto second = ask(2);
  wait_until_queued(1);
  second.cancel();
  test::expect_error([&] { second.get(); }, ErrorKind::cancelled);
  auto third = ask(3);
  wait_until_queued(2);  // so the message that ends the second call has arrived, too
  gate.open();
  EXPECT_EQ(third.get(), 9);
  EXPECT_EQ(gate.order(), (std::vector<int>{1, 3}));
}

TEST_F(BatchedServices, FailOneRequestOrAll) {
  serve({.max_batch = 3, .max_delay = std::chrono::hours(1)});
  gate.open();
  auto one = ask(1), negative = ask(-1), two = ask(2);
  EXPECT_EQ(one.get() + two.get(), 5);
  test::expect_error([&] { negative.get(); }, ErrorKind::invalid_argument, "a negative number");
  EXPECT_EQ(service->stats().failed, 1U);

  std::vector<rpc::Future<int>> all;
  for (const int number : {1, 666, 2}) all.push_back(ask(number));
  for (auto& each : all) test::expect_error([&] { each.get(); }, ErrorKind::handler_failed, "no such number");
  EXPECT_EQ(service->stats().failed, 4U);
}

TEST_F(BatchedServices, AnAnswerTooFewIsAnErrorOfAllRequests) {
  serve({.max_batch = 1, .max_delay = milliseconds(0)});
  gate.open();
  test::expect_error([&] { ask(999).get(); }, ErrorKind::handler_failed,
                     "batched service 'squares': the function returned 0 answers, expected 1");
}

TEST_F(BatchedServices, LongRequestsDoNotPadTheOthers) {
  serve({.max_delay = milliseconds(0), .max_padded = 40, .length = [](const int& n) {
           return static_cast<std::size_t>(n);
         }});
  auto first = ask(1);
  gate.wait_for_batches(1);
  std::vector<rpc::Future<int>> others;
  for (const int number : {4, 5, 30, 2}) {
    others.push_back(ask(number));
    wait_until_queued(others.size());
  }
  gate.open();
  rpc::when_all(std::move(others)).get();
  EXPECT_EQ(gate.sizes(), (std::vector<std::size_t>{1, 2, 1, 1}));
}

TEST_F(BatchedServices, RunAsManyBatchesAtATimeAsThereAreThreads) {
  service = batched<"squares">(
      [this](std::vector<int> numbers) {
        gate.pass(numbers.size());
        return numbers;
      },
      BatchOptions<int>{.max_batch = 1, .max_delay = milliseconds(0), .threads = 2});
  agent.serve(service);
  auto one = ask(1), two = ask(2);
  gate.wait_for_batches(2);  // both run
  gate.open();
  EXPECT_EQ(one.get() + two.get(), 3);
}

TEST(BatchedService, ItsEndFailsTheRequestsThatWait) {
  struct Item final : detail::BatchItem {
    explicit Item(std::promise<std::exception_ptr>& failed) : failed(failed) {}
    void fail(std::exception_ptr error) override { failed.set_value(std::move(error)); }
    std::promise<std::exception_ptr>& failed;
  };
  Gate gate;
  std::promise<std::exception_ptr> running, waiting;
  std::thread end;
  {
    auto queue = std::make_unique<detail::BatchQueue>(
        "q", BatchLimits{.max_batch = 1, .max_delay = {}}, 8, 1,
        [&](const detail::BatchItems& items, const auto&) { gate.pass(items.size()); });
    queue->add(std::make_unique<Item>(running));
    gate.wait_for_batches(1);
    queue->add(std::make_unique<Item>(waiting));
    end = std::thread([queue = std::move(queue)]() mutable { queue.reset(); });
  }
  const auto error = waiting.get_future().get();  // while the first batch runs
  gate.open();
  end.join();
  test::expect_error([&] { std::rethrow_exception(error); }, ErrorKind::shut_down,
                     "batched service 'q': it ended before the request ran");
  EXPECT_EQ(gate.sizes(), std::vector<std::size_t>{1});
}

TEST(BatchedService, RefusesLimitsOfZero) {
  const auto identity = [](std::vector<int> numbers) { return numbers; };
  const BatchOptions<int> none{.max_batch = 0};
  test::expect_error([&] { return batched<"none">(identity, none); }, ErrorKind::invalid_argument,
                     "max_batch 0");
}

}  // namespace
}  // namespace weft::dist_optim::batched_service_test
