// BatchQueue: the requests of a BatchedService, and the threads that run its batches (batch_plan.h).
//
// Thread-safe.
#pragma once

#include <weft/dist_optim/serve/batch_plan.h>
#include <weft/rpc/call/call_context.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/mutex.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace weft::dist_optim {

// Counters since the service was created, and the requests that wait now. Divided by `requests`, queue_ns is
// the mean wait of a request; divided by `batches`, compute_ns is the mean time of a batch.
struct BatchStats {
  std::uint64_t requests = 0;  // that have run in a batch
  std::uint64_t batches = 0;
  std::uint64_t failed = 0;      // requests whose function has thrown, or has returned an error for them
  std::uint64_t shed = 0;        // requests that were refused because the queue was full
  std::uint64_t dropped = 0;     // requests that were cancelled, or whose deadlines have passed, in the queue
  std::uint64_t queue_ns = 0;    // the sum of the waits of the requests that have run
  std::uint64_t compute_ns = 0;  // the sum of the times of the batches
  std::uint64_t waiting = 0;     // requests in the queue
  // sizes[i]: batches with more than 2^(i-1) and at most 2^i requests.
  std::vector<std::uint64_t> sizes = {};
};
WEFT_CODEC(BatchStats, requests, batches, failed, shed, dropped, queue_ns, compute_ns, waiting, sizes)

namespace detail {

// A request, with its typed argument and its promise.
class WEFT_EXPORT BatchItem {
 public:
  virtual ~BatchItem() = default;
  virtual void fail(std::exception_ptr error) = 0;

  QueuedRequest queued;
  std::shared_ptr<rpc::CallContext> call;
};
using BatchItems = std::vector<std::unique_ptr<BatchItem>>;

class WEFT_EXPORT BatchQueue {
 public:
  // Called on the threads of the queue, with at least one request. Calls `count` with the number of requests
  // that have failed, and then answers all of them.
  using Run = std::function<void(BatchItems, const std::function<void(std::size_t failed)>& count)>;
  // name: of the service, for errors.
  BatchQueue(std::string name, const BatchLimits& limits, std::size_t max_queued, std::size_t threads,
             Run run);
  // Fails queued requests with shut_down, and waits for the batches that run.
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  // Throws resource_exhausted if max_queued requests wait.
  void add(std::unique_ptr<BatchItem> item);
  BatchStats stats() const;

 private:
  struct Next {
    BatchItems dropped = {}, batch = {};
    std::optional<rpc::Clock::time_point> wait_until = {};
  };
  Next next(rpc::Clock::time_point now) WEFT_REQUIRES(mutex_);
  void count(const BatchItems& batch, rpc::Clock::time_point now) WEFT_REQUIRES(mutex_);
  void work();

  const std::string name_;
  const BatchLimits limits_;
  const std::size_t max_queued_;
  const Run run_;
  mutable rpc::Mutex mutex_;
  rpc::Condition changed_;
  std::deque<std::unique_ptr<BatchItem>> items_ WEFT_GUARDED_BY(mutex_);  // by priority, then by arrival
  std::uint64_t arrivals_ WEFT_GUARDED_BY(mutex_) = 0;
  BatchStats stats_ WEFT_GUARDED_BY(mutex_);
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace detail
}  // namespace weft::dist_optim
