// OptimizerLayer: the optimizer layer of one agent. It has the OwnedParametersGuards of the agent's objects,
// and the steps in flight on these objects. So a trainer that dies is removed from all OwnedParametersGuards.
// dist_optim::layers() creates one OptimizerLayer for each agent. Thread-safe.
#pragma once

#include <weft/dist_optim/service/internal/handle_ends.h>
#include <weft/dist_optim/service/internal/local_snapshots.h>
#include <weft/dist_optim/service/internal/local_steps.h>
#include <weft/dist_optim/service/internal/owned_parameters_guard.h>
#include <weft/dist_optim/service/internal/pass_admission.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>

#include <atomic>
#include <span>

namespace weft::dist_optim {

class WEFT_EXPORT OptimizerLayer final : public rpc::CallHook {
 public:
  explicit OptimizerLayer(std::shared_ptr<rpc::AgentCore> core) : core_(std::move(core)) {}
  static std::shared_ptr<OptimizerLayer> of(
      const rpc::CallHost& host);  // failed_precondition without the layer

  // The agent of this layer.
  const std::shared_ptr<rpc::AgentCore>& core() const { return core_; }
  // The guard of an object's parameters, created at the first call. `invalid_argument` if the object is
  // neither a torch::nn::Module nor a SteppedObject.
  std::shared_ptr<OwnedParametersGuard> guard_of(rref::StoredObject& object);
  std::shared_ptr<OwnedParametersGuard> guard_of(rpc::CallContext& call);  // of the call's object
  std::vector<std::shared_ptr<OwnedParametersGuard>> guards();             // of all objects that still exist

  // This agent's part of the pass, and the gradients of the owned parameters, by parameter index.
  // PassPart::pass is null if the pass is unknown here. `failed_precondition` if the pass has ended.
  struct PassPart {
    std::shared_ptr<dist_autograd::PassState> pass;
    Gradients gradients;
  };
  PassPart part_of(const dist_autograd::PassId& pass, const OwnedParameters& owned) const;
  // Checks that the passes of this agent may step, and returns their ids. `failed_precondition` if one of
  // them has failed or was released.
  std::vector<dist_autograd::PassId> may_step(std::span<const dist_autograd::Pass> passes) const;

  // Shared by all objects of the agent.
  const std::shared_ptr<LocalSteps>& local_steps() const { return local_steps_; }
  const std::shared_ptr<LocalSnapshots>& local_snapshots() const { return local_snapshots_; }
  // next_step(): a new number for a step or a snapshot of which this agent is the trainer. admission(),
  // handle_ends(): for this agent's optimizer handles.
  std::uint64_t next_step() { return ++steps_; }
  const std::shared_ptr<PassAdmission>& admission() const { return admission_; }
  const std::shared_ptr<HandleEnds>& handle_ends() const { return handle_ends_; }

  bool knows(std::string_view) const override { return false; }
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;
  // Fails the steps and admissions that wait: their calls own the objects that would complete them.
  void shut_down() override;
  // Completes when the handles that the program has destroyed have ended, or after a few seconds.
  rpc::Future<void> leaving() override;

 private:
  std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<LocalSteps> local_steps_ = std::make_shared<LocalSteps>();
  const std::shared_ptr<LocalSnapshots> local_snapshots_ =
      std::make_shared<LocalSnapshots>(core_, local_steps_);
  const std::shared_ptr<PassAdmission> admission_ = std::make_shared<PassAdmission>(core_);
  const std::shared_ptr<HandleEnds> handle_ends_ = std::make_shared<HandleEnds>();
  std::atomic<std::uint64_t> steps_{0}, guards_made_{0};
  rpc::Mutex mutex_;
  std::vector<std::weak_ptr<OwnedParametersGuard>> guards_ WEFT_GUARDED_BY(mutex_);
};

// Gives an agent its OptimizerLayer and serves OptimizerService. Part of dist_optim::layers().
WEFT_EXPORT void install_optimizers(rpc::Agent& agent);

}  // namespace weft::dist_optim
