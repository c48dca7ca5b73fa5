// StageModule: a stage of a pipeline on its worker, behind an RRef.
//
// It is the stage's module: its layers are submodules by their names. So optimizers, RemoteModule and
// checkpoints take it like any module behind an RRef. run() computes its part of a step in the pass of the
// call, on the worker's thread: while a step is in flight, calls that read or change the module must wait.
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

  using Service = rpc::Service<"weft.pipeline.stage", rpc::Method<"run", &StageModule::run, rpc::resumable>>;

 private:
  const std::shared_ptr<StageWorker> worker_;
  const int stage_;
};

}  // namespace weft::pipeline
