// StepCall: one step of a DistributedOptimizer, from the trainer's side.
//
// Objects of one owner: one call each, the owner decides (LocalSteps). Of several owners: a two-phase commit
// (Gray 1978) with the trainer as coordinator: all prepare, and only when all are prepared they are told to
// commit. A refusal, or an owner lost before, aborts everywhere. What can still fail in the second phase (an
// owner lost, a trainer of the synchronous round that died, memory) leaves some objects stepped and others
// not; StepError says which. Nothing is logged: a trainer that dies between its commits leaves them as they
// are.
#pragma once

#include <weft/dist_optim/service/owner_call.h>
#include <weft/dist_optim/service/step_error.h>

#include <memory>

namespace weft::dist_optim {

class WEFT_EXPORT StepCall : public std::enable_shared_from_this<StepCall> {
 public:
  using Done = rpc::UniqueFunction<void(rpc::Result<StepResult>)>;
  // decided: runs once, when the next step over these objects may be sent.
  // modules: kept until all that the step holds of them has gone; some may be shards of embeddings.
  // rows: of each module, none where it is no shard; may be shorter.
  using Modules = std::shared_ptr<const std::vector<rref::ReferencePtr>>;
  using Rows = std::vector<std::optional<StepRows>>;
  static void start(Modules modules, StepRequest request, Rows rows, rpc::Callback decided, Done done);
  // Whether one agent owns them all.
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
