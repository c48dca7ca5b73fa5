// DistOptimizer: steps the parameters of modules behind RRefs, where they live, with the gradients of passes.
//
//   dist_optim::DistOptimizer optimizer{agent, torch::optim::AdamOptions(1e-3), dist_optim::stale(2), shared,
//   head}; co_await pass.backward(loss); co_await optimizer.step(pass);               // exactly the pass's
//   gradients; then its claim on the parameters ends
//
// The optimizer and its state belong to the parameters: all handles on one object, from all trainers, share
// them, and handles that disagree on options or mode are refused. The mode (local/step_mode.h) says what
// happens when several trainers step one object. Thread-safe.
#pragma once

#include <weft/dist_optim/context.h>
#include <weft/dist_optim/optimizer_service.h>

#include <span>

namespace weft::dist_optim {

class WEFT_EXPORT DistOptimizer {
 public:
  template <class... T>
  DistOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode, const rref::RRef<T>&... modules)
      : DistOptimizer(agent, std::move(spec), mode, std::vector{modules.reference()...}) {}
  DistOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                std::vector<rref::ReferencePtr> modules);
  ~DistOptimizer();  // leaves the objects' rounds
  DistOptimizer(const DistOptimizer&) = delete;
  DistOptimizer& operator=(const DistOptimizer&) = delete;

  // Completes when every owner has stepped. Errors of attaching (other options, no module) come with the
  // first step. An owner that fails does not undo the others' steps; the error names it.
  rpc::Future<void> step(const dist_autograd::Pass& pass);
  rpc::Future<void> step(
      std::span<const dist_autograd::Pass> passes);  // one step with the sum of their gradients

  rpc::Future<void> set_learning_rate(double rate);
  rpc::Future<void> attached();  // every owner has accepted this optimizer

 private:
  struct Attachment;
  template <auto Method, class... Given>
  auto ask(const rref::ReferencePtr& module, Given&&... given) const;

  std::vector<rref::ReferencePtr> modules_;
  std::shared_ptr<Attachment> attachment_;
};

}  // namespace weft::dist_optim
