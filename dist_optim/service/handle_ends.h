// HandleEnds: the optimizer handles that the program has destroyed while they still have work in flight:
// their last steps, and the notification of the owners. An agent that leaves waits for them, so that their
// references are released.
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
  // Kept by a handle's core, in a member that is destroyed after its references.
  std::shared_ptr<void> begin() {
    {
      rpc::MutexLock lock(mutex_);
      ++open_;
    }
    return {static_cast<void*>(this), [self = shared_from_this()](void*) { self->one_ended(); }};
  }
  // Completes when no handle has work in flight.
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
  void give_up() { complete(); }  // all waits complete

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
