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

void StageModule::set_learning_rate(double rate) {
  worker_->optimizer(stage_).set_learning_rate(rate, std::nullopt);
}

dist_optim::OptimizerState StageModule::optimizer_state() { return worker_->optimizer(stage_).state(); }

void StageModule::load_optimizer_state(const dist_optim::OptimizerState& state) {
  worker_->optimizer(stage_).set_state(state);
}

}  // namespace weft::pipeline
