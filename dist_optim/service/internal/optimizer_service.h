// OptimizerService: the requests of a DistributedOptimizer to the owners of its parameters. Every call
// concerns an object behind an RRef and runs in the object's turn.
//
// If one agent owns all objects of a step, the trainer calls `step` on each object, and the owner decides
// when all these calls have arrived. If several agents own the objects, the trainer calls `prepare` on each
// object, decides, and calls `commit` or `abort` on each object.
#pragma once

#include <weft/dist_optim/service/internal/optimizer_layer.h>
#include <weft/dist_optim/service/module_snapshot.h>
#include <weft/dist_optim/service/step_messages.h>
#include <weft/rpc/tensor/tensor_codec.h>

namespace weft::dist_optim {

WEFT_CODEC(StepMode, kind, count, mean)
WEFT_CODEC(OwnerStats, version, staleness, open_passes, waiting_passes, live_versions, copied_bytes,
           version_loads)

// Reads a module on its owner. guard: null if no optimizer steps the module.
WEFT_EXPORT ModuleSnapshot take_snapshot(const torch::nn::Module& module,
                                         const std::shared_ptr<OwnedParametersGuard>& guard);

// Identifies the modules of one owner that are read at one moment. The snapshot() calls for all of them have
// the same value.
struct SnapshotGroup {
  std::uint64_t number = 0;   // the trainer's agent counts its steps and snapshots
  std::uint64_t modules = 0;  // the number of snapshot() calls, one for each module
};
WEFT_CODEC(SnapshotGroup, number, modules)

struct WEFT_EXPORT OptimizerService {
  // The name of one of the calling agent's trainers. nullopt: the agent itself is the trainer.
  using Trainer = std::optional<std::string>;
  // Registers a trainer with the object. asks: true if the trainer's handle has several objects. The owner
  // then calls admit_everywhere() on the trainer for every pass that may have to wait at this object
  // (PassAdmission). Returns the object's number at its owner, which is the same for every reference to the
  // object.
  std::uint64_t attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode, bool asks, Trainer trainer);
  void detach(rpc::CallContext& call, Trainer trainer);

  // admit() completes when the pass may read the object, or at once if the pass has already stepped it.
  // version: the version that the pass reads; nullopt: the newest. release() ends the admission. The caller
  // must have created the pass, or have a trainer that is registered with the object.
  rpc::Future<void> admit(rpc::CallContext& call, dist_autograd::PassId pass, Trainer trainer,
                          std::optional<std::uint64_t> version);
  void release(rpc::CallContext& call, dist_autograd::PassId pass);
  // An owner calls this on the trainer. Completes when PassAdmission has admitted the trainer's pass to
  // `object`, and to all objects that share a handle with it.
  rpc::Future<void> admit_everywhere(rpc::CallContext& call, dist_autograd::PassId pass,
                                     std::uint64_t object);

  // objects: the number of the step's objects, including this one, all on this owner. rows: the gradients of
  // the rows if the object is a shard of an embedding; otherwise nullopt.
  rpc::Future<StepOutcome> step(rpc::CallContext& call, StepRequest request, std::uint64_t objects,
                                std::optional<StepRows> rows);
  rpc::Future<StepPart> prepare(rpc::CallContext& call, StepRequest request, std::optional<StepRows> rows);
  // Completes with the version of the parameters after the step. In synchronous mode, it completes when the
  // round closes.
  rpc::Future<std::uint64_t> commit(rpc::CallContext& call, std::uint64_t number, StepDecision decision,
                                    Trainer trainer);
  // Ends a step that step() or prepare() has begun. No effect if the step has ended.
  void abort(rpc::CallContext& call, std::uint64_t number, Trainer trainer);

  // The next four functions call OwnedParameters and OwnerOptimizer, whose headers state the errors.
  void set_learning_rate(rpc::CallContext& call, double rate, std::optional<std::string> group);
  void set_mode(rpc::CallContext& call, StepMode mode);
  OptimizerState save_state(rpc::CallContext& call);
  void load_state(rpc::CallContext& call, OptimizerState state);
  // Fails as load_state() with this state would, and changes nothing.
  void check_state(rpc::CallContext& call, OptimizerState state);
  // Reads the module and its optimizer. group: the modules of this owner that are read at the same moment;
  // nullopt: only this one.
  rpc::Future<tensor::OnStreams<ModuleSnapshot>> snapshot(rpc::CallContext& call,
                                                          std::optional<SnapshotGroup> group);
  // Gives up a snapshot of several modules. No effect if it has ended.
  void abort_snapshot(rpc::CallContext& call, std::uint64_t number);
  // The object's number, as attach() returns it; 0: no optimizer has stepped it.
  std::uint64_t number(rpc::CallContext& call);
  // Restores the result of snapshot() as one change: all of it or, with an error, nothing. No step of the
  // object runs meanwhile.
  void restore(rpc::CallContext& call, dist_autograd::StateDict module,
               std::optional<OptimizerState> optimizer);
  OwnerStats stats(rpc::CallContext& call);

  using Service = rpc::Service<
      "weft.optim", rpc::Method<"attach", &OptimizerService::attach>,
      rpc::Method<"detach", &OptimizerService::detach>, rpc::Method<"admit", &OptimizerService::admit>,
      rpc::Method<"release", &OptimizerService::release>,
      rpc::Method<"admit_everywhere", &OptimizerService::admit_everywhere>,
      rpc::Method<"set_mode", &OptimizerService::set_mode>, rpc::Method<"step", &OptimizerService::step>,
      rpc::Method<"prepare", &OptimizerService::prepare>, rpc::Method<"commit", &OptimizerService::commit>,
      rpc::Method<"abort", &OptimizerService::abort>,
      rpc::Method<"set_learning_rate", &OptimizerService::set_learning_rate>,
      rpc::Method<"save_state", &OptimizerService::save_state>,
      rpc::Method<"load_state", &OptimizerService::load_state>,
      rpc::Method<"check_state", &OptimizerService::check_state, rpc::idempotent>,
      rpc::Method<"snapshot", &OptimizerService::snapshot>,
      rpc::Method<"abort_snapshot", &OptimizerService::abort_snapshot>,
      rpc::Method<"number", &OptimizerService::number>, rpc::Method<"restore", &OptimizerService::restore>,
      rpc::Method<"stats", &OptimizerService::stats>>;

  OptimizerLayer* layer = nullptr;  // the agent keeps the layer as long as its methods
};

}  // namespace weft::dist_optim
