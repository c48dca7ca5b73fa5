// SharedQueue: the collectives that one rank executes in shared memory, one at a time, in order.
//
// run_here() runs a small collective on the calling thread, as long as the other ranks arrive soon. A
// collective that takes longer continues on a thread of the queue, and notifies its caller of the end of the
// run. The queue creates the thread when it first needs one, and later collectives run there, too.
// Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/shm/shared_transfer.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <deque>
#include <thread>

namespace weft::collectives {

class WEFT_EXPORT SharedQueue {
 public:
  // The queue keeps a transfer until the transfer's `done` has been called.
  using TransferPtr = std::shared_ptr<SharedTransfer>;
  // The state in which a transfer has ended, or the transfer's exception. After an exception the queue stops.
  using Outcome = rpc::Result<SharedTransfer::State>;

  using Done = rpc::UniqueFunction<void(Outcome)>;  // on the queue's thread

  // space: shared by the ranks that run these collectives. The destructor stops the transfer in flight, and
  // waits for the queue's thread, unless it runs on that thread.
  explicit SharedQueue(std::shared_ptr<SharedSpace> space);
  ~SharedQueue();

  // The queue keeps the space alive.
  SharedSpace& space() const { return *space_; }

  std::uint64_t begun() const {
    return begun_.load(std::memory_order_relaxed);
  }  // the number of transfers so far

  // Runs the collective on this thread. Empty: it was not started, because other transfers are in flight or
  // waiting, or because disable_inline() was called. State::in_progress: the transfer is in flight, and no
  // other transfer starts until continue_async() is called.
  std::optional<Outcome> run_here(const TransferPtr& transfer);
  // Continues a transfer that run_here() has left in flight, on the queue's thread. `done` is called once.
  void continue_async(const TransferPtr& transfer, Done done);
  // Runs the collective on the queue's thread, after all earlier ones. `done` is called once.
  void push(const TransferPtr& transfer, Done done);

  // From now on run_here() starts no transfer: a member has left, and the program's threads must not wait for
  // it.
  void disable_inline() { open_.store(false); }
  // Ends the transfer in flight, and all later ones, with State::stopped.
  void stop();

  std::exception_ptr failure()
      const;  // the exception of the first transfer that failed; null: none has failed

 private:
  struct Entry {
    TransferPtr transfer;
    Done done;
  };
  struct State {  // outlives the queue until the queue's thread has ended
    rpc::Mutex mutex;
    rpc::Condition changed;
    std::deque<Entry> entries WEFT_GUARDED_BY(mutex);
    bool busy WEFT_GUARDED_BY(mutex) = false;  // a transfer is in flight; no other transfer may start
    bool ended WEFT_GUARDED_BY(mutex) = false;
    std::exception_ptr failure WEFT_GUARDED_BY(mutex);
  };
  static Outcome advance(State& state, SharedTransfer& transfer, Lockstep::Patience patience);
  static void work(const std::shared_ptr<State>& state);
  void wake() WEFT_REQUIRES(state_->mutex);

  const std::shared_ptr<SharedSpace> space_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::atomic<std::uint64_t> begun_{0};  // written under the mutex
  std::atomic<bool> open_{true};
  std::thread thread_ WEFT_GUARDED_BY(state_->mutex);
};

}  // namespace weft::collectives
