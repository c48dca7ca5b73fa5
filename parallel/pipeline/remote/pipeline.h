// Pipeline: trains a model whose stages live on other agents, by any schedule, driven by one agent.
//
//   rpc::Task<void> drive(rpc::Agent& agent) {
//     std::vector<rpc::Peer> workers{agent.peer("worker1"), agent.peer("worker2")};
//     pipeline::PipelineOptions options{.cuts = {7}};
//     options.schedule = schedule::zb_h1({.ranks = 2, .microbatches = 8});
//     auto model = co_await pipeline::Pipeline::create(agent, workers, options);
//     dist_optim::DistributedOptimizer optimizer{agent, torch::optim::SGDOptions(0.05),
//                                                dist_optim::synchronous, model.modules()};
//     for (auto& [images, targets] : batches()) {
//       auto step = co_await model.step(images, targets);  // forward and backward of all micro-batches
//       co_await optimizer.step(step.pass);
//     }
//   }
//   int main(int argc, char** argv) {
//     return rpc::run_job(argc, argv, pipeline::layers({resnet_layers, loss_of(cross_entropy)}), drive);
//   }
//
// Each rank of the schedule is a worker, which builds its stages from the layers of the model and computes
// them on its own thread. Workers send activations and gradients of activations to each other; the driver
// sends the inputs to the stages that use them, and the targets to the last stage. The gradients of
// parameters stay with their stages, in the step's pass. They are the gradients of the loss of the whole
// batch (PipelineOptions::mean_loss); batch norms normalize each micro-batch.
//
// If a stage throws, a worker is lost, or a value does not arrive within the timeout, the step fails on all
// workers. The error of a stage names the stage, the micro-batch and the action. The next step may start at
// once; after the loss of a worker, first replace that worker (restore()). A failed step does not change the
// parameters, except by steps of PipelineOptions::optimizer; batch norms may have changed their running
// statistics. The workers must be able to connect to each other by name, as members of a job. While a step is
// in flight, do not read or change the modules of the stages. Values are sent through host memory.
// Thread-safe; one step is in flight at a time.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/remote/pipeline_layer.h>
#include <weft/parallel/pipeline/remote/stage_module.h>
#include <weft/parallel/schedule/schedule.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace weft::pipeline {

struct PipelineOptions {
  std::vector<int> cuts;  // each is the first layer of the next stage
  // The schedule must have one stage more than there are cuts, and as many ranks as there are workers. It
  // needs no messages.
  schedule::Schedule schedule;
  bool mean_loss = true;  // false: the losses of micro-batches are added
  // The seed of the initial values (CutOptions::seed). nullopt: each worker draws from its generator.
  std::optional<std::uint64_t> seed = {};
  // If it is set, the stages step their parameters, at the optimizer steps of the schedule (PipeDream) or, if
  // it has none, at the end of a step. The pass then has no gradients, and the stages must not be given to a
  // DistributedOptimizer.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // By worker; empty: the layers stay on the devices on which they were built.
  std::vector<c10::Device> devices = {};
  // The time for which a stage waits for a value, for which the driver waits for the next stage to complete
  // after one has, and, after a failure, for which the driver waits for all ranks.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
};

// The result of one step.
struct PipelineStep {
  std::vector<at::Tensor> losses;  // by micro-batch, without their weights
  at::Tensor loss;                 // of the batch
  // As measured, by the workers' clocks: schedule::svg() shows it next to the prediction.
  schedule::Timeline timeline;
  dist_autograd::Pass pass;  // has the gradients, for an optimizer's step
};

// A copy of all stages between two steps, in the driver's memory: parameters, buffers, optimizers' state, the
// states of the workers' generators, and training modes. A value; its tensors are not changed.
struct PipelineCommit {
  std::vector<StageCommit> stages;
};

class WEFT_EXPORT Pipeline {
 public:
  // Builds the stages on all workers at the same time. invalid_argument: the cuts or the schedule do not fit
  // the model or the number of workers, two ranks have the same worker, a worker has another model, two
  // stages of a worker share a parameter (use LayerGraph::tie instead), or the schedule has optimizer steps
  // and there is no optimizer. unsupported: replicated or sharded stages; ties together with an optimizer.
  // failed_precondition: an agent was created without pipeline::layers().
  static rpc::Future<Pipeline> create(rpc::Agent& agent, std::vector<rpc::Peer> workers,
                                      PipelineOptions options);
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();  // releases the stages

  // inputs, targets: tensors with equally many rows. If there are fewer rows than micro-batches, each row is
  // a micro-batch. invalid_argument: no rows, or a tensor that requires grad. failed_precondition: the
  // schedule has no backward, or another step is in flight. Cancelling the future ends the step on all
  // workers.
  rpc::Future<PipelineStep> step(Values inputs, Values targets);
  rpc::Future<PipelineStep> step(at::Tensor input, at::Tensor target);
  // Returns the last stage's outputs of all rows, without gradients. A 0-dimensional output, such as an
  // auxiliary loss, is combined from those of the micro-batches as the losses are
  // (PipelineOptions::mean_loss). The second overload is for models with one output.
  rpc::Future<Values> evaluate(Values inputs);
  rpc::Future<at::Tensor> evaluate(at::Tensor input);
  rpc::Future<void> train(bool on = true);  // sets the mode of all stages' modules
  // For PipelineOptions::optimizer on all stages. failed_precondition: it is not set. Do not call these while
  // a step is in flight.
  rpc::Future<void> set_learning_rate(double rate);
  rpc::Future<dist_optim::DistributedOptimizerState> save_optimizer_state();
  rpc::Future<void> load_optimizer_state(const dist_optim::DistributedOptimizerState& state);

  // Functions to continue after the loss of workers. commit() copies all stages; failed_precondition: a step
  // of the pipeline or of an optimizer is in flight. lost() returns the ranks whose workers do not answer
  // within `silence`. restore() restores the commit on all stages. The ranks in `replaced` get new workers,
  // which first build the stages. restore() ends the passes of all earlier steps. Afterwards stages() and
  // modules() return other references: create a new DistributedOptimizer with the same options, which
  // continues with the state of the commit. If restore() fails, call it again. Errors of restore(): those of
  // create(); invalid_argument if the commit belongs to other stages; failed_precondition if a step, or
  // another pass over a stage, is in flight.
  rpc::Future<PipelineCommit> commit();
  rpc::Future<std::vector<int>> lost(std::chrono::nanoseconds silence = std::chrono::seconds{5}) const;
  rpc::Future<void> restore(PipelineCommit commit, std::map<int, rpc::Peer> replaced = {});

  // References to the stages, by stage: for optimizers, checkpoints and RemoteModule.
  const std::vector<rref::RRef<StageModule>>& stages() const;
  std::vector<rref::ReferencePtr> modules() const;
  const schedule::Schedule& schedule() const;  // with the model's edges

 private:
  struct Impl;
  explicit Pipeline(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace weft::pipeline
