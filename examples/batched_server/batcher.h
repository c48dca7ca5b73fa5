// Batcher: answers single requests by forwards over the rows of many requests.
//
// A forward begins when enough rows are queued, or when the oldest request has waited for the window.
// Requests that arrive during a forward are part of the next forward. The forwards run on a thread of the
// Batcher. If a forward throws, its requests fail with that error. The destructor fails queued requests with
// `aborted`. Thread-safe.
#pragma once

#include <torch/torch.h>
#include <weft/rpc/core/future.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

class Batcher {
 public:
  using Forward = std::function<at::Tensor(at::Tensor)>;  // [N, ...] -> [N, ...], row by row
  struct Options {
    std::int64_t max_rows = 64;  // the limit for one forward; a request with more rows runs alone
    std::chrono::microseconds window{2000};
  };
  struct Counts {
    std::int64_t requests = 0, forwards = 0, largest = 0;  // largest: rows of a forward
  };

  Batcher(Forward forward, Options options)
      : forward_(std::move(forward)), options_(options), thread_([this] { work(); }) {}
  ~Batcher() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  weft::rpc::Future<at::Tensor> run(at::Tensor rows) {
    std::lock_guard lock(mutex_);
    rows_ += rows.size(0);
    auto& request = waiting_.emplace_back(Request{std::move(rows), Clock::now(), {}});
    changed_.notify_one();
    return request.answer.future();
  }

  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    at::Tensor rows;
    Clock::time_point came;
    weft::rpc::Promise<at::Tensor> answer;
  };

  void work() {
    torch::NoGradGuard no_grad;
    for (std::vector<Request> batch; !(batch = next()).empty();) answer(std::move(batch));
  }

  std::vector<Request> next() {  // empty: the Batcher is being destroyed
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (!ended_)
      changed_.wait_until(lock, waiting_.front().came + options_.window,
                          [&] { return ended_ || rows_ >= options_.max_rows; });
    std::vector<Request> batch;
    if (ended_) return batch;
    std::int64_t rows = 0;
    const auto fits = [&] { return rows + waiting_.front().rows.size(0) <= options_.max_rows; };
    while (!waiting_.empty() && (batch.empty() || fits())) {
      rows += waiting_.front().rows.size(0);
      batch.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    rows_ -= rows;
    counts_.requests += static_cast<std::int64_t>(batch.size());
    counts_.forwards += 1;
    counts_.largest = std::max(counts_.largest, rows);
    return batch;
  }

  void answer(std::vector<Request> batch) const {
    std::vector<at::Tensor> rows, answers;
    std::vector<std::int64_t> sizes;
    for (const Request& request : batch) {
      rows.push_back(request.rows);
      sizes.push_back(request.rows.size(0));
    }
    try {
      answers = forward_(at::cat(rows)).split_with_sizes(sizes);
    } catch (...) {
      for (Request& request : batch) request.answer.fail(std::current_exception());
      return;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i].answer.complete(answers[i]);
  }

  const Forward forward_;
  const Options options_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  std::int64_t rows_ = 0;  // the rows of the queued requests
  Counts counts_;
  bool ended_ = false;
  std::thread thread_;  // the last member, because the thread uses the other members
};
