// DistributedOptimizer: steps the parameters of modules behind RRefs, on their owners, with the gradients of
// passes.
//
//   dist_optim::DistributedOptimizer optimizer{agent, torch::optim::AdamOptions(1e-3),
//                                              dist_optim::bounded_staleness(2), shared, head};
//   co_await pass.backward(loss);
//   co_await optimizer.step(pass);  // exactly the pass's gradients; then its claim on the parameters ends
//
// A ShardedEmbedding takes part like a module: its rows step with the modules' parameters, or nothing does.
// Its own row optimizer steps them, and its own set_learning_rate(), save() and load() apply.
//
// The optimizer and its state belong to the parameters: all handles on one object, from all trainers, share
// them, and handles that disagree on options or mode are refused. The mode (local/step_mode.h) defines how
// the steps of several trainers on one object are combined. There is no zero_grad: gradients belong to
// passes, a pass steps an object once, and the next pass begins without gradients. Thread-safe; the
// operations of one handle run in the order of their calls on every object. Steps do not wait for each
// other's replies; other operations wait for the steps before them. docs/dist_optim.md states the guarantees
// of each operation.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/grad_scaler.h>
#include <weft/dist_optim/layers.h>
#include <weft/dist_optim/learning_rate.h>
#include <weft/dist_optim/local/host_stats.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/dist_optim/local/step_mode.h>
#include <weft/dist_optim/local/step_options.h>
#include <weft/dist_optim/participant.h>
#include <weft/dist_optim/service/step_error.h>

#include <concepts>
#include <span>

namespace weft::dist_optim {

// The state of each module's optimizer, in the order of the handle's modules. It names no owner: it may be
// loaded where the same modules, in the same order, live on other agents. Can be sent; see
// local/optimizer_state.h.
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
  // Modules behind RRefs, and ShardedEmbeddings or other StepParticipants. Passes must look an embedding's
  // rows up after this call, through the embedding given here or a copy of it.
  template <class... T>
    requires requires(Participants all, OptimizerSpec spec, const T&... one) { (all.add(spec, one), ...); }
  DistributedOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode, const T&... participants)
      : DistributedOptimizer(agent, mode, participants_of(spec, participants...)) {}
  DistributedOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                       std::vector<rref::ReferencePtr> modules);
  // An optimizer for each module; for options of parts of one module see OptimizerSpec::with_group.
  // trainer: if one agent drives several trainers (the replicas of a pipeline), the name of this one. It
  // takes part in rounds separately and has its own staleness. admit() assigns a pass to this trainer.
  DistributedOptimizer(rpc::Agent& agent, StepMode mode, std::vector<Module> modules,
                       std::vector<StepParticipant::Ptr> others = {}, const std::string& trainer = {});
  ~DistributedOptimizer();  // leaves the objects' rounds, once its steps have completed
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Assigns the pass to this handle's trainer, before the pass first reads one of the objects, and completes
  // when it may read all of them. Needed if the handle names a trainer, if another agent created the pass, or
  // to select the version; other passes are admitted when they first read. version: the pass reads this
  // version of every module, also in its backward (weight stashing). Another open pass must read that
  // version, or it must be the newest; otherwise `failed_precondition`, which lists the kept versions.
  rpc::Future<void> admit(const dist_autograd::Pass& pass, std::optional<std::uint64_t> version = {});

  // Completes when every owner has stepped; the passes must live until then. All modules are stepped, or none
  // (StepError; step_call.h describes the exceptions). The first step reports errors of attaching (other
  // options, no module).
  rpc::Future<StepResult> step(const dist_autograd::Pass& pass, const StepOptions& options = {});
  // One step with the sum of their gradients, or their mean: gradients accumulated over several passes.
  rpc::Future<StepResult> step(std::span<const dist_autograd::Pass> passes, const StepOptions& options = {});

  // Applies from the next step of this handle on, once the previous steps have completed: to the modules'
  // parameters, to one parameter group, by its prefix ("": the parameters in no group), or to all. For all
  // trainers: it belongs to the parameters. The caller need not wait.
  rpc::Future<void> set_learning_rate(double rate, std::optional<std::string> group = {});

  // Changes the mode of all trainers from `synchronous`, with another number of trainers or with the mean, to
  // `mode`: between rounds. The attached trainers stay, and their next steps belong to a new round.
  // failed_precondition while a step is in flight on an object: try again. Other modes can change only when
  // every handle has been destroyed.
  rpc::Future<void> set_mode(StepMode mode);

  // Includes all earlier steps of this handle: of one moment if no other trainer steps meanwhile. Does not
  // contain the parameters.
  rpc::Future<DistributedOptimizerState> save_state();
  // The state, with the parameters and buffers of `modules`. For each of these that is also one of the
  // handle's, both are of one version, even if other trainers step it meanwhile. Those of one owner are of
  // one moment: a step over objects of that owner only is in all of them or in none.
  rpc::Future<DistSnapshot> snapshot(std::vector<rref::ReferencePtr> modules);
  // Restores the result of snapshot() into the same modules in the same order: parameters, buffers and
  // optimizer's state of a module change together, or not at all with an error. Errors: those of
  // load_state().
  rpc::Future<void> restore(std::vector<rref::ReferencePtr> modules, DistSnapshot snapshot);
  // `invalid_argument` if the state is that of other modules or another optimizer: the error is the first
  // refusal, and the modules that did not refuse have the new state.
  rpc::Future<void> load_state(DistributedOptimizerState state);

  // The measurements of the owner of each module, then of each embedding's shard: versions, the staleness of
  // its steps, copies. Answered at once, also while steps are in flight.
  rpc::Future<std::vector<HostStats>> stats();

  rpc::Future<void> attached();  // every owner has accepted this optimizer

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
