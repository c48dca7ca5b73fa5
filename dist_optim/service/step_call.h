// StepCall: one step of a DistributedOptimizer, from the trainer's side.
//
// For objects of one owner: one call each, and the owner decides (LocalSteps). For several owners: a
// two-phase commit (Gray 1978) with the trainer as coordinator: all prepare, and only when all are prepared,
// the trainer asks them to commit. A refusal, or an owner lost before, aborts on all. Some failures are still
// possible in the second phase (a lost owner, a trainer of the synchronous round that died, memory). They
// leave some objects stepped and others not; StepError lists them. Steps are not logged: a trainer that dies
// between its commits leaves the objects as they are.
#pragma once

#include <weft/dist_optim/service/owner_call.h>
#include <weft/dist_optim/service/step_error.h>

#include <memory>

namespace weft::dist_optim {

class WEFT_EXPORT StepCall : public std::enable_shared_from_this<StepCall> {
 public:
  // Receives the result of the step, or a StepError.
  using Done = rpc::UniqueFunction<void(rpc::Result<StepResult>)>;
  // decided: runs once, when the next step over these objects may be sent.
  // modules: kept until all data of the step about them is released; some may be shards of embeddings.
  // rows: of each module, none if it is no shard; may be shorter.
  using Modules = std::shared_ptr<const std::vector<rref::ReferencePtr>>;
  using Rows = std::vector<std::optional<StepRows>>;
  static void start(Modules modules, StepRequest request, Rows rows, rpc::Callback decided, Done done);
  // Whether one agent owns all of them.
  static bool one_owner(const std::vector<rref::ReferencePtr>& modules);

 private:
  StepCall(Modules modules, StepRequest request, Rows rows, rpc::Callback decided, Done done)
      : kept_(std::move(modules)),
        modules_(*kept_),
        request_(std::move(request)),
        rows_(std::move(rows)),
        decided_(std::move(decided)),
        done_(std::move(done)) {
    rows_.resize(modules_.size());
  }

  void step_at_one_owner();
  void prepare();
  void decide_all(std::vector<rpc::Result<StepPart>> parts);
  void commit(const StepDecision& decision);
  void abort_all();
  template <class T>
  std::exception_ptr failure(const std::vector<rpc::Result<T>>& results, bool committing,
                             StepDecision::Action action) const;

  const Modules kept_;
  const std::vector<rref::ReferencePtr>& modules_;
  const StepRequest request_;
  Rows rows_;  // of each module
  rpc::Callback decided_;
  Done done_;
};

}  // namespace weft::dist_optim
