// StepCall: one step of a DistributedOptimizer, from the trainer's side.
//
// If one owner has all objects, the trainer sends one call for each object, and the owner decides
// (LocalSteps). If the objects have several owners, the step is a two-phase commit (Gray 1978) with the
// trainer as coordinator: all objects prepare, and only when all are prepared, the trainer asks the owners to
// commit. If an owner refuses or is lost before that, the step is aborted on all objects. Some failures are
// still possible in the second phase: an owner is lost, another trainer of the synchronous round dies, memory
// is exhausted. Then only some of the objects may have stepped; StepError lists them. Steps are not logged:
// if a trainer dies between its commits, only some of the objects have stepped.
#pragma once

#include <weft/dist_optim/service/internal/owner_call.h>
#include <weft/dist_optim/service/step_error.h>

#include <memory>

namespace weft::dist_optim {

class WEFT_EXPORT StepCall : public std::enable_shared_from_this<StepCall> {
 public:
  // Receives the result of the step, or a StepError.
  using Done = rpc::UniqueFunction<void(rpc::Result<StepResult>)>;
  // modules: the objects; some may be shards of embeddings. Kept until all data of the step that refers to
  // them is released. rows: the gradients of each object that is a shard, nullopt for a module; may be
  // shorter than `modules`. decided: called once, when the next step over these objects may be sent.
  using Modules = std::shared_ptr<const std::vector<rref::ReferencePtr>>;
  using Rows = std::vector<std::optional<StepRows>>;
  static void start(Modules modules, StepRequest request, Rows rows, rpc::Callback decided, Done done);
  // Whether one agent owns all modules.
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
