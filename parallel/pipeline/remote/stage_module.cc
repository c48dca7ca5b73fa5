#include <weft/parallel/pipeline/remote/stage_module.h>

#include <weft/dist_autograd/pass.h>
#include <weft/parallel/pipeline/remote/internal/stage_worker.h>

#include <string>
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

StageCommit StageModule::commit(dist_optim::ModuleSnapshot module) const {
  StageCommit commit{.module = std::move(module), .is_training = is_training()};
  if (worker_->has_optimizer(stage_)) commit.module.optimizer = worker_->optimizer(stage_).state();
  for (auto& each : commit.module.module) each.tensor = each.tensor.cpu();
  for (auto& [name, tensor] : commit.module.optimizer.tensors) tensor = tensor.cpu();
  for (const at::Generator& generator : worker_->generators()) {
    at::Generator held = generator;
    const std::lock_guard lock(held.mutex());
    commit.generators.push_back(held.get_state());
  }
  return commit;
}

void StageModule::restore(const StageCommit& commit) {
  if (worker_->has_optimizer(stage_)) worker_->optimizer(stage_).set_state(commit.module.optimizer);
  if (is_training() != commit.is_training) train(commit.is_training);
  std::vector<at::Generator> generators = worker_->generators();
  if (generators.size() != commit.generators.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "Pipeline::restore: the commit has the states of " +
                         std::to_string(commit.generators.size()) + " generators, expected " +
                         std::to_string(generators.size()) + ": the stage was on another device");
  for (std::size_t i = 0; i < generators.size(); ++i) {
    const std::lock_guard lock(generators[i].mutex());
    generators[i].set_state(commit.generators[i]);
  }
}

}  // namespace weft::pipeline
