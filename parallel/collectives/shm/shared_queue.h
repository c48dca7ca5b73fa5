// SharedQueue: the collectives that one rank carries out in shared memory, one at a time, in order.
//
// A small one runs on the thread that begins it, as long as the others come soon; what takes longer goes on,
// and what comes meanwhile is done, on a thread of the queue's own, which there is from then on. Who began a
// run is told of its end there. Thread-safe; ends with its last handle.
#pragma once

#include <weft/parallel/collectives/shm/shared_run.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace weft::collectives {

class WEFT_EXPORT SharedQueue {
 public:
  using RunPtr = std::shared_ptr<SharedRun>;
  using Outcome = rpc::Result<SharedRun::State>;
  using Done = rpc::UniqueFunction<void(Outcome)>;  // on the queue's thread

  explicit SharedQueue(std::shared_ptr<SharedSpace> space);
  ~SharedQueue();

  SharedSpace& space() const { return *space_; }
  std::uint64_t begun() const { return begun_.load(std::memory_order_relaxed); }  // runs

  // Runs it on this thread. None: it was not begun, since others are before it, or the queue takes none here
  // any more. Under way: nothing else is run until go_on() is called.
  std::optional<Outcome> run_here(const RunPtr& run);
  void go_on(const RunPtr& run, Done done);
  void push(const RunPtr& run, Done done);

  void take_none_here() { open_.store(false); }
  // Ends the run that is under way, and all that come, with State::stopped.
  void stop();
  std::exception_ptr failure() const;  // of the first run that failed; null: none has

 private:
  struct Entry {
    RunPtr run;
    Done done;
  };
  struct State {       // outlives the queue while its thread still ends
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    std::deque<Entry> entries;
    bool busy = false;  // with a run that is at nobody else's disposal
    bool ended = false;
    std::exception_ptr failure;
  };
  static Outcome advance(State& state, SharedRun& run, Lockstep::Patience patience);
  static void work(const std::shared_ptr<State>& state);
  void wake();  // under the mutex

  const std::shared_ptr<SharedSpace> space_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::atomic<std::uint64_t> begun_{0};  // written under the mutex
  std::atomic<bool> open_{true};
  std::thread thread_;  // started under the mutex
};

}  // namespace weft::collectives
