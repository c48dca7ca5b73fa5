// SharedQueue: the collectives that one rank executes in shared memory, one at a time, in order.
//
// A small one runs on the thread that starts it, as long as the others arrive soon. Longer ones continue, and
// later ones run, on a thread of the queue, which exists from then on. The caller of a run is notified of its
// end there. Thread-safe; ends with its last handle.
#pragma once

#include <weft/parallel/collectives/shm/shared_run.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <deque>
#include <thread>

namespace weft::collectives {

class WEFT_EXPORT SharedQueue {
 public:
  // Kept until its `done` has been called.
  using RunPtr = std::shared_ptr<SharedRun>;
  // The state in which a run has ended, or its exception. After an exception the queue stops.
  using Outcome = rpc::Result<SharedRun::State>;

  using Done = rpc::UniqueFunction<void(Outcome)>;  // on the queue's thread

  // space: of the ranks that run these collectives. The destructor stops the run in flight, and waits for the
  // queue's thread, except on that thread.
  explicit SharedQueue(std::shared_ptr<SharedSpace> space);
  ~SharedQueue();

  // The queue owns a share of it.
  SharedSpace& space() const { return *space_; }

  std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }  // runs

  // Runs it on this thread. None: it was not started, because others are before it, or because the queue runs
  // none here any more. In flight: no other run starts until go_on() is called.
  std::optional<Outcome> run_here(const RunPtr& run);
  // Continues a run that run_here() has left in flight, on the queue's thread. `done` is called once.
  void go_on(const RunPtr& run, Done done);
  // Runs it on the queue's thread, after all earlier ones. `done` is called once.
  void push(const RunPtr& run, Done done);

  // From now on run_here() starts no run: a member has left, and the program's threads must not wait for it.
  void take_none_here() { open_.store(false); }
  // Ends the run in flight, and all later ones, with State::stopped.
  void stop();

  std::exception_ptr failure() const;  // of the first run that failed; null: none has failed

 private:
  struct Entry {
    RunPtr run;
    Done done;
  };
  struct State {  // outlives the queue while its thread still ends
    rpc::Mutex mutex;
    rpc::Condition changed;
    std::deque<Entry> entries WEFT_GUARDED_BY(mutex);
    bool busy WEFT_GUARDED_BY(mutex) = false;  // with a run that no other thread may use
    bool ended WEFT_GUARDED_BY(mutex) = false;
    std::exception_ptr failure WEFT_GUARDED_BY(mutex);
  };
  static Outcome advance(State& state, SharedRun& run, Lockstep::Patience patience);
  static void work(const std::shared_ptr<State>& state);
  void wake() WEFT_REQUIRES(state_->mutex);

  const std::shared_ptr<SharedSpace> space_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::atomic<std::uint64_t> begun_{0};  // written under the mutex
  std::atomic<bool> open_{true};
  std::thread thread_ WEFT_GUARDED_BY(state_->mutex);
};

}  // namespace weft::collectives
