#include <weft/parallel/pipeline/remote/stage_module.h>

#include <weft/dist_autograd/pass.h>
#include <weft/parallel/pipeline/remote/stage_worker.h>

#include <utility>

namespace weft::pipeline {

StageModule::StageModule(std::shared_ptr<StageWorker> worker, int stage)
    : worker_(std::move(worker)), stage_(stage) {
  for (const auto& layer : worker_->graph()[stage].module->named_children())
    register_module(layer.key(), layer.value());
}

rpc::Future<StageReport> StageModule::run(rpc::CallContext& call, StagePart part) {
  return worker_->run(stage_, dist_autograd::Pass::of(call).state(), std::move(part));
}

}  // namespace weft::pipeline
