#include <weft/parallel/pipeline/remote/pipeline_layer.h>

#include <weft/dist_optim/layers.h>
#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>
#include <weft/parallel/pipeline/remote/internal/stage_worker.h>

#include <utility>

namespace weft::pipeline {

std::shared_ptr<PipelineLayer> PipelineLayer::of(const rpc::CallHost& host) {
  auto layer = host.layers().share<PipelineLayer>();
  if (layer == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "this agent was created without pipelines: pass pipeline::layers() to its constructor");
  return layer;
}

void PipelineLayer::add(const PipelineId& id, const std::shared_ptr<StageWorker>& worker) {
  rpc::MutexLock lock(mutex_);
  std::erase_if(workers_, [](const auto& each) { return each.second.expired(); });
  workers_[id] = worker;
}

std::shared_ptr<StageWorker> PipelineLayer::find(const PipelineId& id) {
  rpc::MutexLock lock(mutex_);
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : found->second.lock();
}

void PipelineLayer::stats(rpc::LayerStats& to) const {
  rpc::MutexLock lock(mutex_);
  std::uint64_t& count = to["pipeline.workers"];
  for (const auto& [id, worker] : workers_) count += worker.expired() ? 0 : 1;
}

PipelineLayer::~PipelineLayer() {
  for (const auto& worker : workers()) worker->join();
}

std::vector<std::shared_ptr<StageWorker>> PipelineLayer::workers() const {
  std::vector<std::shared_ptr<StageWorker>> all;
  rpc::MutexLock lock(mutex_);
  for (const auto& [id, weak] : workers_)
    if (auto worker = weak.lock()) all.push_back(std::move(worker));
  return all;
}

void PipelineLayer::shut_down() {
  for (const auto& worker : workers())
    worker->end(rpc::Error(rpc::ErrorKind::shut_down, "the worker's agent has ended"));
}

rpc::Layers layers(Model model, tensor::DeviceOptions devices) {
  rpc::Layers all = dist_optim::layers(std::move(devices));
  all.push_back([model = std::move(model)](rpc::Agent& agent) {
    auto layer = std::make_shared<PipelineLayer>(model);
    agent.core()->layers().put(layer);
    agent.core()->hooks().add(layer);
    auto service = std::make_shared<PipelineService>();
    service->layer = layer;
    service->agent = &agent;
    agent.serve(service);
  });
  return all;
}

}  // namespace weft::pipeline
