// StageModule: a stage of a pipeline on its worker, behind an RRef.
//
// The layers of the stage are submodules, under their names. Therefore DistributedOptimizer, RemoteModule and
// checkpoints use a StageModule like any module behind an RRef, unless the schedule steps its parameters.
// run() computes the stage's part of a step in the pass of the call, on the worker's thread. Do not read or
// change the module while a step is in flight.
#pragma once

#include <weft/parallel/pipeline/remote/messages.h>
#include <weft/rpc/rpc.h>

#include <torch/nn/module.h>

#include <memory>

namespace weft::pipeline {

class StageWorker;

class WEFT_EXPORT StageModule final : public torch::nn::Module {
 public:
  StageModule(std::shared_ptr<StageWorker> worker, int stage);

  // Completes when the stage's rank has computed the step. The gradients of parameters are in the pass. If
  // the step fails, the future has the first error on this rank, which names stage, micro-batch and action.
  rpc::Future<StageReport> run(rpc::CallContext& call, StagePart part);

  // Call these between two steps. failed_precondition: the schedule does not step parameters.
  void set_learning_rate(double rate);
  dist_optim::OptimizerState optimizer_state();
  void load_optimizer_state(const dist_optim::OptimizerState& state);

  // For PipelineService, which calls these on the worker's thread. commit() adds the rest of the stage's
  // state to a snapshot of the module, with all tensors in host memory. restore() restores that rest.
  StageWorker& worker() const { return *worker_; }
  StageCommit commit(dist_optim::ModuleSnapshot module) const;
  void restore(const StageCommit& commit);

  using Service = rpc::Service<"weft.pipeline.stage", rpc::Method<"run", &StageModule::run>,
                               rpc::Method<"set_learning_rate", &StageModule::set_learning_rate>,
                               rpc::Method<"optimizer_state", &StageModule::optimizer_state, rpc::idempotent>,
                               rpc::Method<"load_optimizer_state", &StageModule::load_optimizer_state>>;

 private:
  const std::shared_ptr<StageWorker> worker_;
  const int stage_;
};

}  // namespace weft::pipeline
