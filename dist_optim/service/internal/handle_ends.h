// HandleEnds: the optimizer handles that the program has destroyed while they still have work in flight:
// their last steps, and the notification of the owners. An agent that leaves waits until this work has ended,
// so that the handles' references are released.
//
// Owner: the agent's dist_optim::OptimizerLayer, and the tokens. Thread-safe.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <utility>
#include <vector>

namespace weft::dist_optim {

class HandleEnds : public std::enable_shared_from_this<HandleEnds> {
 public:
  // Called when a handle is destroyed. The handle's core keeps the returned token, in a member that is
  // destroyed after the core's references.
  std::shared_ptr<void> begin() {
    {
      rpc::MutexLock lock(mutex_);
      ++open_;
    }
    return {static_cast<void*>(this), [self = shared_from_this()](void*) { self->one_ended(); }};
  }
  // Completes when no destroyed handle has work in flight.
  rpc::Future<void> all_ended() {
    rpc::Promise<void> promise;
    auto future = promise.future();
    {
      rpc::MutexLock lock(mutex_);
      if (open_ > 0) {
        waiting_.push_back(std::move(promise));
        return future;
      }
    }
    promise.complete(rpc::Result<void>{});
    return future;
  }
  void give_up() { complete(); }  // completes all waits

 private:
  void one_ended() {
    {
      rpc::MutexLock lock(mutex_);
      if (--open_ > 0) return;
    }
    complete();
  }
  void complete() {
    std::vector<rpc::Promise<void>> done;
    {
      rpc::MutexLock lock(mutex_);
      done.swap(waiting_);
    }
    for (auto& one : done) one.complete(rpc::Result<void>{});
  }

  rpc::Mutex mutex_;
  std::size_t open_ WEFT_GUARDED_BY(mutex_) = 0;
  std::vector<rpc::Promise<void>> waiting_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
