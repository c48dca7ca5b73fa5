#include <weft/parallel/pipeline/remote/pipeline_service.h>

#include <weft/parallel/pipeline/remote/stage_worker.h>
#include <weft/parallel/schedule/text.h>

#include <map>
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

// Each stage has its own optimizer.
void refuse_shared_parameters(const StageGraph& graph) {
  std::map<const c10::TensorImpl*, int> stage_of;
  for (int stage = 0; stage < graph.size(); ++stage) {
    if (!graph.is_here(stage)) continue;
    for (const at::Tensor& parameter : graph[stage].module->parameters()) {
      const int first = stage_of.try_emplace(parameter.unsafeGetTensorImpl(), stage).first->second;
      if (first != stage)
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         "Pipeline::create: the stages " + std::to_string(first) + " and " +
                             std::to_string(stage) +
                             " share a parameter: put the layers that have it into one stage");
    }
  }
}

}  // namespace

std::vector<rref::RRef<StageModule>> PipelineService::install(WorkerPlan plan) {
  schedule::Schedule schedule = schedule::load(plan.schedule, "the schedule of the pipeline");
  schedule.microbatches = plan.microbatches;
  CutOptions cuts{.cuts = plan.cuts, .built = std::set<int>{}, .seed = plan.seed};
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (schedule.rank_of(stage, 0) == plan.rank) cuts.built->insert(stage);
  const LayerGraph layers = layer->model().layers();
  if (layers.names() != plan.layers)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "Pipeline::create: " + agent->name() +
                                                           " has another model than the driver: " +
                                                           first_difference(layers.names(), plan.layers));
  StageGraph graph = cut(layers, cuts);
  refuse_shared_parameters(graph);
  schedule.edges = graph.edges();
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

}  // namespace weft::pipeline
