// StageModule: a stage of a pipeline on its worker, behind an RRef.
//
// It is the stage's module: its layers are submodules by their names. So optimizers, RemoteModule and
// checkpoints take it like any module behind an RRef, unless the schedule steps its parameters. run()
// computes its part of a step in the pass of the call, on the worker's thread: while a step is in flight,
// calls that read or change the module must wait.
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

  // Completes when the stage's rank has computed the step. The gradients of parameters are in the pass.
  // Errors: the first that ends the step here, with stage, micro-batch and action.
  rpc::Future<StageReport> run(rpc::CallContext& call, StagePart part);

  // Of a schedule that steps parameters, between two steps.
  void set_learning_rate(double rate);
  dist_optim::OptimizerState optimizer_state();
  void load_optimizer_state(const dist_optim::OptimizerState& state);

  // For PipelineService, on the worker's thread. Copies in the host's memory. commit() completes the snapshot
  // of the module; restore() gives the stage what is not in the module.
  StageWorker& worker() const { return *worker_; }
  StageCommit commit(dist_optim::ModuleSnapshot module) const;
  void restore(const StageCommit& commit);

  using Service = rpc::Service<"weft.pipeline.stage", rpc::Method<"run", &StageModule::run, rpc::resumable>,
                               rpc::Method<"set_learning_rate", &StageModule::set_learning_rate>,
                               rpc::Method<"optimizer_state", &StageModule::optimizer_state, rpc::idempotent>,
                               rpc::Method<"load_optimizer_state", &StageModule::load_optimizer_state>>;

 private:
  const std::shared_ptr<StageWorker> worker_;
  const int stage_;
};

}  // namespace weft::pipeline
