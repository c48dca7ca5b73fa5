#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>

#include <weft/dist_optim/owner_snapshot.h>
#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/remote/internal/stage_worker.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rref/rref_layer.h>

#include <utility>

namespace weft::pipeline {
namespace {

std::string first_difference(const std::vector<std::string>& own, const std::vector<std::string>& drivers) {
  const auto name = [](const std::vector<std::string>& names, std::size_t layer) {
    return layer < names.size() ? names[layer] : std::string("none");
  };
  std::size_t layer = 0;
  while (name(own, layer) == name(drivers, layer)) ++layer;
  return "layer " + std::to_string(layer) + " is " + name(own, layer) + ", expected " + name(drivers, layer);
}

std::shared_ptr<rref::StoredObject> stage_of(rpc::CallContext& call) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  if (target == nullptr || target->object->as<StageModule>() == nullptr)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "Pipeline: a call on an object that is not a stage, expected an RRef of Pipeline::stages()");
  return target->object;
}

}  // namespace

std::vector<rref::RRef<StageModule>> PipelineService::install(WorkerPlan plan) {
  schedule::Schedule schedule = schedule::load(plan.schedule, "the schedule of the pipeline");
  schedule.microbatches = plan.microbatches;
  const CutOptions cuts{.cuts = plan.cuts, .built = stages_of(schedule, plan.rank), .seed = plan.seed};
  const LayerGraph layers = layer->model().layers();
  if (layers.names() != plan.layers)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "Pipeline::create: " + agent->name() +
                                                           " has another model than the driver: " +
                                                           first_difference(layers.names(), plan.layers));
  StageGraph graph = cut(layers, cuts);
  schedule.edges = graph.edges();
  check_schedule("Pipeline::create", graph, schedule,
                 {.steps = true, .has_optimizer = plan.optimizer.has_value()});
  check_ties("Pipeline::create", graph, schedule);
  if (plan.workers.size() != schedule.ranks.size() || plan.rank < 0 ||
      static_cast<std::size_t>(plan.rank) >= schedule.ranks.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "Pipeline::create: rank " + std::to_string(plan.rank) +
                                                           " of " + std::to_string(plan.workers.size()) +
                                                           " workers, expected one of the schedule's " +
                                                           std::to_string(schedule.ranks.size()) + " ranks");
  refuse_shared_parameters("Pipeline::create", graph,
                           [](int, int) { return false; });  // each has an optimizer
  const auto worker = std::make_shared<StageWorker>(*agent->core(), plan, std::move(graph),
                                                    std::move(schedule), layer->model().loss);
  layer->add(plan.pipeline, worker);
  std::vector<rref::RRef<StageModule>> stages;
  for (const int stage : worker->stages())
    stages.push_back(rref::local(*agent, std::make_shared<StageModule>(worker, stage)));
  return stages;
}

rpc::Future<void> PipelineService::put(rpc::CallContext& call, ValueMessage message) {
  const auto worker = layer->find(message.pipeline);
  if (worker == nullptr)
    return rpc::Future<void>::made(std::make_exception_ptr(rpc::Error(
        rpc::ErrorKind::aborted,
        "pipeline step " + std::to_string(message.step) + ": the receiver has released its stages")));
  return worker->put(call.peer().id, std::move(message));
}

rpc::Future<StageCommit> PipelineService::commit(rpc::CallContext& call) {
  rpc::Promise<StageCommit> promise;
  auto future = promise.future();
  const auto stage = stage_of(call);
  stage->as<StageModule>()->worker().after_step([stage, promise = std::move(promise)]() mutable {
    promise.complete(
        rpc::capture([&] { return stage->as<StageModule>()->commit(dist_optim::take_module(*stage)); }));
  });
  return future;
}

rpc::Future<void> PipelineService::restore(rpc::CallContext& call, StageCommit commit,
                                           std::vector<rpc::AgentId> workers) {
  rpc::Promise<void> promise;
  auto future = promise.future();
  const auto stage = stage_of(call);
  StageWorker& worker = stage->as<StageModule>()->worker();
  worker.set_workers(*agent->core(), std::move(workers));
  worker.after_passes(
      [stage, core = agent->core(), commit = std::move(commit), promise = std::move(promise)]() mutable {
        promise.complete(rpc::capture([&] {
          dist_optim::restore_module(*core, stage, commit.module);
          stage->as<StageModule>()->restore(commit);
        }));
      });
  return future;
}

}  // namespace weft::pipeline
