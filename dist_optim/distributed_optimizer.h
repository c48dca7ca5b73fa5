// DistributedOptimizer: steps the parameters of modules behind RRefs, on their owners, with the gradients of
// passes.
//
//   dist_optim::DistributedOptimizer optimizer{agent, torch::optim::AdamOptions(1e-3),
//                                              dist_optim::bounded_staleness(2), shared, head};
//   co_await pass.backward(loss);
//   co_await optimizer.step(pass);  // applies exactly the pass's gradients, and ends its admission
//
// A ShardedEmbedding takes part like a module: a step changes its rows and the modules' parameters, or none
// of them. The rows are stepped by the embedding's own optimizer: use the embedding's set_learning_rate(),
// save() and load() for the rows.
//
// The optimizer and its state belong to the parameters. All handles on one object, from all trainers, share
// them. A handle with other options or another mode is refused. The mode (local/step_mode.h) defines how the
// steps of several trainers on one object are combined. There is no zero_grad: gradients belong to passes, a
// pass steps an object once, and the next pass begins without gradients. Thread-safe; the operations of one
// handle run in the order of their calls on every object. Steps do not wait for each other's replies; other
// operations wait for the steps before them. docs/dist_optim.md states the guarantees of each operation.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/grad_scaler.h>
#include <weft/dist_optim/layers.h>
#include <weft/dist_optim/learning_rate.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/dist_optim/local/owner_stats.h>
#include <weft/dist_optim/local/step_mode.h>
#include <weft/dist_optim/local/step_options.h>
#include <weft/dist_optim/participant.h>
#include <weft/dist_optim/service/step_error.h>

#include <concepts>
#include <span>

namespace weft::dist_optim {

// The state of each module's optimizer, in the order of the handle's modules. It names no owner: a handle
// with the same modules in the same order can load it, even if the modules live on other agents. It may be an
// argument or a result of a call (local/optimizer_state.h).
struct DistributedOptimizerState {
  std::vector<OptimizerState> modules;
};
WEFT_CODEC(DistributedOptimizerState, modules)

// The state of a handle's optimizer and of some modules, for a checkpoint.
struct DistSnapshot {
  std::vector<dist_autograd::StateDict> modules;  // in the given order
  DistributedOptimizerState optimizer;
};

class WEFT_EXPORT DistributedOptimizer {
 public:
  // A module and its optimizer.
  struct Module {
    rref::ReferencePtr module;  // rref.reference()
    OptimizerSpec spec;
  };

 private:
  struct Participants {
    std::vector<Module> modules;
    std::vector<StepParticipant::Ptr> others;

    template <class T>
    void add(const OptimizerSpec& spec, const rref::RRef<T>& module) {
      modules.push_back({module.reference(), spec});
    }
    template <std::convertible_to<StepParticipant::Ptr> T>
    void add(const OptimizerSpec&, const T& other) {
      others.push_back(other);
    }
  };

 public:
  // participants: modules behind RRefs, and ShardedEmbeddings or other StepParticipants. Passes must look up
  // the rows of an embedding only after this call, and through the given ShardedEmbedding or a copy of it.
  template <class... T>
    requires requires(Participants all, OptimizerSpec spec, const T&... one) { (all.add(spec, one), ...); }
  DistributedOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode, const T&... participants)
      : DistributedOptimizer(agent, mode, participants_of(spec, participants...)) {}
  DistributedOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                       std::vector<rref::ReferencePtr> modules);
  // Each module has its own OptimizerSpec; OptimizerSpec::with_group sets options for a part of a module.
  // trainer: the name of this handle's trainer, if one agent drives several trainers (the replicas of a
  // pipeline). Each trainer takes part in rounds separately and has its own staleness. admit() assigns a pass
  // to this trainer.
  DistributedOptimizer(rpc::Agent& agent, StepMode mode, std::vector<Module> modules,
                       std::vector<StepParticipant::Ptr> others = {}, const std::string& trainer = {});
  ~DistributedOptimizer();  // leaves the objects' rounds when the steps of this handle have completed
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Assigns the pass to this handle's trainer, and completes when the pass may read all objects. Call admit()
  // in three cases: the handle names a trainer, another agent created the pass, or `version` selects a
  // version. Call it before the pass first reads one of the objects. Other passes are admitted when they
  // first read. version: the pass reads this version of every module, also in its backward (weight stashing).
  // `failed_precondition`, which lists the kept versions: the version is not the newest, and no other open
  // pass reads it.
  rpc::Future<void> admit(const dist_autograd::Pass& pass, std::optional<std::uint64_t> version = {});

  // Completes when every owner has stepped; the passes must live until then. All modules are stepped, or none
  // (StepError; step_call.h describes the cases in which only some are). The first step reports errors of
  // attaching: the object is no module, or other handles on it have other options.
  rpc::Future<StepResult> step(const dist_autograd::Pass& pass, const StepOptions& options = {});
  // One step with the sum of the passes' gradients, or with their mean (StepOptions::mean): gradient
  // accumulation over several passes.
  rpc::Future<StepResult> step(std::span<const dist_autograd::Pass> passes, const StepOptions& options = {});

  // Sets the learning rate of the modules' parameters, for all trainers. The rate applies to the later steps
  // of this handle, and not to the earlier ones; the caller need not wait. group: the prefix of one parameter
  // group; "": the parameters in no group; nullopt: all parameters.
  rpc::Future<void> set_learning_rate(double rate, std::optional<std::string> group = {});

  // Changes one synchronous mode to another (another number of trainers, or the mean instead of the sum), for
  // all trainers and between rounds. The attached trainers stay, and their next steps belong to a new round.
  // `failed_precondition`: a step is in flight on an object (try again), or the present or the new mode is
  // not synchronous (first destroy every handle). `invalid_argument`: more trainers are attached than the
  // mode allows.
  rpc::Future<void> set_mode(StepMode mode);

  // The state of the modules' optimizers after all earlier steps of this handle, without the parameters. If
  // other trainers step meanwhile, the states of different modules may be of different moments.
  rpc::Future<DistributedOptimizerState> save_state();
  // The state of the handle's optimizers, and the parameters and buffers of `modules`. If one of `modules` is
  // also a module of the handle, its parameters and its optimizer's state are of one version, even if other
  // trainers step it meanwhile. The modules of one owner are read at one moment: a step over objects of that
  // owner only is in all of them or in none.
  rpc::Future<DistSnapshot> snapshot(std::vector<rref::ReferencePtr> modules);
  // Restores the result of snapshot() into the same modules in the same order. The parameters, the buffers
  // and the optimizer's state of a module change together. Errors: those of load_state().
  rpc::Future<void> restore(std::vector<rref::ReferencePtr> modules, DistSnapshot snapshot);
  // Loads the state. `invalid_argument`: the state is that of other modules or of another optimizer. If a
  // module refuses its state, no module changes. If an owner fails after all owners have accepted their
  // states, for example because it dies, the error lists the modules that have the new state.
  rpc::Future<void> load_state(DistributedOptimizerState state);

  // The owners' measurements (versions, staleness of steps, copies), for each module and then for each
  // embedding's shard. The owners answer at once, also while steps are in flight.
  rpc::Future<std::vector<OwnerStats>> stats();

  rpc::Future<void> attached();  // completes when every owner has accepted this optimizer

 private:
  template <class... T>
  static Participants participants_of(const OptimizerSpec& spec, const T&... participants) {
    Participants all;
    (all.add(spec, participants), ...);
    return all;
  }
  DistributedOptimizer(rpc::Agent& agent, StepMode mode, Participants participants)
      : DistributedOptimizer(agent, mode, std::move(participants.modules), std::move(participants.others)) {}

  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace weft::dist_optim
