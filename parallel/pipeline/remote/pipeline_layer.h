// pipeline::layers(): the layers of an agent that drives a pipeline or computes some of its stages.
//
//   int main(int argc, char** argv) {
//     return rpc::run_job(argc, argv, pipeline::layers({resnet50_layers, loss_of(cross_entropy)}), drive);
//   }
//
// All processes of the job know the model. A worker builds only its stages. If another agent sends a value,
// PipelineLayer finds the StageWorker that receives it. Thread-safe.
#pragma once

#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/pipeline/remote/messages.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/tensor/device_options.h>

#include <atomic>
#include <map>

namespace weft::pipeline {

class StageWorker;

// The model as all processes of the job have it: the function that creates the layers, and the loss of the
// last stage.
struct Model {
  std::function<LayerGraph()> layers;
  Loss loss;
};

class WEFT_EXPORT PipelineLayer final : public rpc::CallHook {
 public:
  explicit PipelineLayer(Model model) : model_(std::move(model)) {}
  ~PipelineLayer() override;  // waits for the stages that still compute
  // The layer of an agent. failed_precondition: the agent has no such layer.
  static std::shared_ptr<PipelineLayer> of(const rpc::CallHost& host);

  // model(): the model. next_number(): the number of a new pipeline of this agent. add(), find(): the workers
  // on this agent, by pipeline.
  const Model& model() const { return model_; }
  std::uint64_t next_number() { return ++numbers_; }
  void add(const PipelineId& id, const std::shared_ptr<StageWorker>& worker);
  std::shared_ptr<StageWorker> find(const PipelineId& id);  // null: no worker, or its stages are released

  bool knows(std::string_view) const override { return false; }
  void stats(rpc::LayerStats& to) const override;  // "pipeline.workers"
  void shut_down() override;

 private:
  std::vector<std::shared_ptr<StageWorker>> workers() const;

  const Model model_;
  std::atomic<std::uint64_t> numbers_{0};
  mutable rpc::Mutex mutex_;
  std::map<PipelineId, std::weak_ptr<StageWorker>> workers_ WEFT_GUARDED_BY(mutex_);
};

// The pipeline layer and the layers that it needs: distributed optimizers, autograd, RRefs and tensors.
WEFT_EXPORT rpc::Layers layers(Model model, tensor::DeviceOptions devices = {});

}  // namespace weft::pipeline
