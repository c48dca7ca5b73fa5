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
// them on its own thread. Activations and gradients of activations travel from worker to worker; the
// driver sends the inputs to the stages that use them, and the targets to the last one. The gradients of
// parameters stay with their stages, in the step's pass. They are those of the loss of the whole batch
// (PipelineOptions::mean_loss); batch norms normalize each micro-batch.
//
// A stage that throws, a worker that is lost, or a value that does not come within the timeout ends the step
// on all workers. The error of a stage names the stage, the micro-batch and the action. The next step may
// begin at once; after the loss of a worker, another one takes its place (restore()). A step that fails
// leaves the parameters as they are, except for steps of the stages' own optimizers
// (PipelineOptions::optimizer); batch norms may have changed their running statistics. The workers know each
// other, as the members of a job do. While a step is in flight, the modules of the stages must not be read or
// changed. Values travel through the host's memory. Thread-safe; one step is in flight at a time.
#pragma once

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/pipeline_layer.h>
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
  // With as many stages as the cuts make, and as many ranks as there are workers. Messages in it are not
  // needed.
  schedule::Schedule schedule;
  bool mean_loss = true;  // false: the losses of micro-batches are added
  // Of the initial values (CutOptions::seed). Empty: as the workers' generators draw.
  std::optional<std::uint64_t> seed = {};
  // The stages step their own parameters with it, at the end of a step or where the schedule says
  // (PipeDream). There are no gradients in the pass then, and no DistributedOptimizer may have the stages.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // By worker; empty: the layers stay where they are built.
  std::vector<c10::Device> devices = {};
  // For a value that a stage waits for, and, after a failure, for the end of all ranks.
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

// What all stages have between two steps: parameters, buffers, optimizers' state, the states of the workers'
// generators, and training modes. By stage, in the driver's memory. A value; its tensors are not changed.
struct PipelineCommit {
  std::vector<StageCommit> stages;
};

class WEFT_EXPORT Pipeline {
 public:
  // Builds the stages on all workers at the same time. invalid_argument: cuts or schedule do
  // not fit the model or the number of workers, two ranks have one worker, a worker has another model, or two
  // stages of a worker share a parameter (tie copies: LayerGraph::tie), or the schedule steps parameters and
  // there is no optimizer. unsupported: replicated or
  // sharded stages; ties, and an optimizer. failed_precondition: an agent was made without
  // pipeline::layers().
  static rpc::Future<Pipeline> create(rpc::Agent& agent, std::vector<rpc::Peer> workers,
                                      PipelineOptions options);
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();  // releases the stages

  // inputs, targets: data with equally many rows. If there are fewer than micro-batches, each is one.
  // invalid_argument: no rows, or a tensor that requires grad. failed_precondition: the schedule has no
  // backward, or another step is in flight. Cancelling the future ends the step on all workers.
  rpc::Future<PipelineStep> step(Values inputs, Values targets);
  rpc::Future<PipelineStep> step(at::Tensor input, at::Tensor target);
  // The last stage's outputs of all rows, without gradients; of a single output the tensor.
  rpc::Future<Values> evaluate(Values inputs);
  rpc::Future<at::Tensor> evaluate(at::Tensor input);
  rpc::Future<void> train(bool on = true);  // the mode of all stages' modules
  // Of PipelineOptions::optimizer on all stages; not while a step is in flight. failed_precondition: none.
  rpc::Future<void> set_learning_rate(double rate);
  rpc::Future<dist_optim::DistributedOptimizerState> save_optimizer_state();
  rpc::Future<void> load_optimizer_state(const dist_optim::DistributedOptimizerState& state);

  // Survives the loss of workers. commit() copies all stages; not while a step is in flight, of the pipeline
  // or of an optimizer (failed_precondition). lost() returns the ranks whose workers do not answer within
  // `silence`. restore() gives all stages the commit, on the same workers and, for the ranks in `replaced`,
  // on others, which build the stages first. It ends the passes of all earlier steps. stages() and modules()
  // are others afterwards: make a DistributedOptimizer anew, with the same options; it goes on with the state
  // of the commit. After an error call restore() again. Errors: those of create(); invalid_argument if the
  // commit is of other stages; failed_precondition if a step, or a pass of another kind over a stage, is in
  // flight.
  rpc::Future<PipelineCommit> commit();
  rpc::Future<std::vector<int>> lost(std::chrono::nanoseconds silence = std::chrono::seconds{5}) const;
  rpc::Future<void> restore(PipelineCommit commit, std::map<int, rpc::Peer> replaced = {});

  // By stage. For optimizers, checkpoints and RemoteModule.
  const std::vector<rref::RRef<StageModule>>& stages() const;
  std::vector<rref::ReferencePtr> modules() const;
  const schedule::Schedule& schedule() const;  // with the model's edges

 private:
  struct Impl;
  explicit Pipeline(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace weft::pipeline
