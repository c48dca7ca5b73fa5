// OptimizerService: the requests of a DistributedOptimizer to the owners of its parameters. Every call
// concerns an object behind an RRef and runs in the object's turn.
//
// A step over objects of one owner is one `step` for each object: the owner decides it when all have arrived.
// A step over several owners is `prepare` on every object, then `commit` or `abort` on every object: the
// trainer decides.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/service/optimizer_layer.h>
#include <weft/dist_optim/service/step_messages.h>
#include <weft/rpc/tensor/tensor_codec.h>

namespace weft::dist_optim {

WEFT_CODEC(ParameterGroup, prefix, options)
WEFT_CODEC(OptimizerSpec, name, options, groups)
WEFT_CODEC(StepMode, kind, count, mean)
WEFT_CODEC(HostStats, version, staleness, open_passes, waiting_passes, live_versions, copied_bytes,
           version_loads)

// One module: its parameters and buffers, and its optimizer's state, all of one version.
struct ModuleSnapshot {
  std::uint64_t object = 0;  // its number at its owner, as attach() returns it; 0: no optimizer steps it
  dist_autograd::StateDict module;
  OptimizerState optimizer;
  OptimizerSpec spec;         // without a name: no optimizer steps it
  std::uint64_t version = 0;  // of the parameters
};
WEFT_CODEC(ModuleSnapshot, object, module, optimizer, spec, version)

// On the owner. guard: null if no optimizer steps the module.
WEFT_EXPORT ModuleSnapshot take_snapshot(const torch::nn::Module& module,
                                         const std::shared_ptr<HostGuard>& guard);

// Modules of one owner whose snapshots are of one moment: the call for each has this value.
struct SnapshotGroup {
  std::uint64_t number = 0;   // of the trainer's agent's steps and snapshots
  std::uint64_t modules = 0;  // how many calls the owner receives
};
WEFT_CODEC(SnapshotGroup, number, modules)

struct WEFT_EXPORT OptimizerService {
  // trainer: the trainer of the calling agent; none: the agent itself.
  using Trainer = std::optional<std::string>;
  // asks: the trainer admits its passes itself, to this object and others (PassAdmission). Returns the
  // object's number at its owner: the same for every reference to the object.
  std::uint64_t attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode, bool asks, Trainer trainer);
  void detach(rpc::CallContext& call, Trainer trainer);

  // For a pass of the caller, or one that a trainer of the caller steps here. admit() completes when the pass
  // may read the object, or has stepped it already. version: the version that it reads.
  rpc::Future<void> admit(rpc::CallContext& call, dist_autograd::PassId pass, Trainer trainer,
                          std::optional<std::uint64_t> version);
  void release(rpc::CallContext& call, dist_autograd::PassId pass);
  // On the trainer, called by an owner: completes when the trainer's pass may read the object, and all
  // objects that belong together with it.
  rpc::Future<void> admit_everywhere(rpc::CallContext& call, dist_autograd::PassId pass,
                                     std::uint64_t object);

  // objects: the number of the step's objects, including this one, all on this owner. rows: of an embedding's
  // shard.
  rpc::Future<StepOutcome> step(rpc::CallContext& call, StepRequest request, std::uint64_t objects,
                                std::optional<StepRows> rows);
  rpc::Future<StepPart> prepare(rpc::CallContext& call, StepRequest request, std::optional<StepRows> rows);
  // Returns the version of the parameters after the step; in a synchronous round, when the round is closed.
  rpc::Future<std::uint64_t> commit(rpc::CallContext& call, std::uint64_t number, StepDecision decision,
                                    Trainer trainer);
  // For a step of either kind; no effect after its end.
  void abort(rpc::CallContext& call, std::uint64_t number, Trainer trainer);

  // As the functions of ParameterHost and HostOptimizer.
  void set_learning_rate(rpc::CallContext& call, double rate, std::optional<std::string> group);
  void set_mode(rpc::CallContext& call, StepMode mode);
  OptimizerState save_state(rpc::CallContext& call);
  void load_state(rpc::CallContext& call, OptimizerState state);
  // group: the modules that are read together; none: only this one.
  rpc::Future<tensor::OnStreams<ModuleSnapshot>> snapshot(rpc::CallContext& call,
                                                          std::optional<SnapshotGroup> group);
  // For a snapshot of several modules; no effect after its end.
  void abort_snapshot(rpc::CallContext& call, std::uint64_t number);
  // The object's number, as attach() returns it; 0: no optimizer has stepped it.
  std::uint64_t number(rpc::CallContext& call);
  // Restores the result of snapshot() as one change: all of it or, with an error, nothing. No step runs in
  // between.
  void restore(rpc::CallContext& call, dist_autograd::StateDict module,
               std::optional<OptimizerState> optimizer);
  HostStats stats(rpc::CallContext& call);

  using Service = rpc::Service<
      "weft.optim", rpc::Method<"attach", &OptimizerService::attach>,
      rpc::Method<"detach", &OptimizerService::detach>, rpc::Method<"admit", &OptimizerService::admit>,
      rpc::Method<"release", &OptimizerService::release, rpc::resumable>,
      rpc::Method<"admit_everywhere", &OptimizerService::admit_everywhere, rpc::resumable>,
      rpc::Method<"set_mode", &OptimizerService::set_mode>, rpc::Method<"step", &OptimizerService::step>,
      rpc::Method<"prepare", &OptimizerService::prepare>, rpc::Method<"commit", &OptimizerService::commit>,
      rpc::Method<"abort", &OptimizerService::abort>,
      rpc::Method<"set_learning_rate", &OptimizerService::set_learning_rate>,
      rpc::Method<"save_state", &OptimizerService::save_state>,
      rpc::Method<"load_state", &OptimizerService::load_state>,
      rpc::Method<"snapshot", &OptimizerService::snapshot>,
      rpc::Method<"abort_snapshot", &OptimizerService::abort_snapshot>,
      rpc::Method<"number", &OptimizerService::number>, rpc::Method<"restore", &OptimizerService::restore>,
      rpc::Method<"stats", &OptimizerService::stats>>;

  OptimizerLayer* layer = nullptr;  // the agent keeps it as long as its methods
};

}  // namespace weft::dist_optim
