// LocalSnapshots: takes snapshots of several modules of this owner at one moment. A trainer requests the
// snapshot of each module with a separate call. When the last call has arrived, all modules are read
// together.
//
// During the read, nothing changes the modules, and every step over several objects of this owner is applied
// either to all of its objects or to none (LocalSteps::hold). The read enters the VersionGates of all modules
// in the order of the addresses of their OwnedParametersGuards. Backwards use the same order, so no cycle of
// waiting threads can form.
//
// Owner: the agent's dist_optim::OptimizerLayer. Thread-safe; `read` and `done` run on a handler thread,
// outside the mutex.
#pragma once

#include <weft/dist_optim/service/internal/local_steps.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/mutex.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT LocalSnapshots : public std::enable_shared_from_this<LocalSnapshots> {
 public:
  // The trainer, and the trainer's number for the snapshot.
  using Key = std::pair<std::string, std::uint64_t>;
  // One module of a snapshot.
  struct Object {
    std::shared_ptr<OwnedParametersGuard> guard;  // null: no optimizer steps the module
    std::function<void()> read;                   // null: the module was refused
    // All modules have been read; with an error, the snapshot has failed.
    std::function<void(const std::exception_ptr& error)> done = nullptr;
  };

  // For the OptimizerLayer.
  LocalSnapshots(std::shared_ptr<rpc::AgentCore> core, std::shared_ptr<LocalSteps> steps)
      : core_(std::move(core)), steps_(std::move(steps)) {}

  // A call of the snapshot has arrived. modules: the number of calls of the snapshot, one for each module.
  void arrive(const Key& key, std::size_t modules, Object object);
  // The trainer has given up the snapshot: the calls that have arrived fail with `aborted`. No effect if the
  // snapshot is unknown.
  void abort(const Key& key);

 private:
  void take(std::vector<Object> objects);
  static void read_all(const std::vector<std::shared_ptr<OwnedParametersGuard>>& guards,
                       const std::vector<Object>& objects);

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<LocalSteps> steps_;
  rpc::Mutex mutex_;
  std::map<Key, std::vector<Object>> arrived_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
