#include <weft/parallel/pipeline/remote/pipeline_service.h>

#include <weft/parallel/pipeline/remote/stage_worker.h>
#include <weft/parallel/schedule/text.h>

#include <utility>

namespace weft::pipeline {

std::vector<rref::RRef<StageModule>> PipelineService::install(WorkerPlan plan) {
  schedule::Schedule schedule = schedule::load(plan.schedule, "the schedule of the pipeline");
  schedule.microbatches = plan.microbatches;
  CutOptions cuts{.cuts = plan.cuts, .built = std::set<int>{}, .seed = plan.seed};
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (schedule.rank_of(stage, 0) == plan.rank) cuts.built->insert(stage);
  StageGraph graph = cut(layer->model().layers(), cuts);
  schedule.edges = graph.edges();
  const auto worker = std::make_shared<StageWorker>(agent->core(), plan, std::move(graph),
                                                    std::move(schedule), layer->model().loss);
  layer->add(plan.pipeline, worker);
  std::vector<rref::RRef<StageModule>> stages;
  for (const int stage : worker->stages())
    stages.push_back(rref::local(*agent, std::make_shared<StageModule>(worker, stage)));
  return stages;
}

rpc::Future<void> PipelineService::put(ValueMessage message) {
  const auto worker = layer->find(message.pipeline);
  if (worker == nullptr)
    return rpc::Future<void>::made(std::make_exception_ptr(rpc::Error(
        rpc::ErrorKind::aborted,
        "pipeline step " + std::to_string(message.step) + ": the receiver has released its stages")));
  return worker->put(std::move(message));
}

}  // namespace weft::pipeline
