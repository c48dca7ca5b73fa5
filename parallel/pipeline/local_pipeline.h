// LocalPipeline: trains a model whose stages run on threads, or devices, of one process, by any schedule.
//
//   auto graph = pipeline::split(model, {3, 6});
//   auto schedule = schedule::one_forward_one_backward({.ranks = 3, .microbatches = 8});
//   pipeline::LocalPipeline pipeline{graph, schedule, {.loss = loss}};
//   ...
//   optimizer.zero_grad();
//   auto step = pipeline.step({images}, {labels});   // forward and backward of all micro-batches
//   optimizer.step();
//
// Each rank of the schedule is a thread. A step splits its inputs and targets along the first dimension. The
// gradients added to `.grad` are those of the loss of the whole batch, if the loss of a micro-batch is a mean
// over its rows (LocalOptions::mean_loss); batch norms normalize each micro-batch, and the order in which
// gradients are added is that of the schedule. What random numbers the stages draw depends on which thread
// comes first. A step of several ranks with recomputations, during which random numbers are drawn, fails with
// failed_precondition: LibTorch has one generator for all threads.
//
// With LocalOptions::optimizer the stages step their parameters, and nothing is in `.grad`: at the end of the
// step, or where the schedule has optimizer steps. schedule::pipedream() makes each micro-batch a batch, and
// schedule::pipedream_2bw() each of several groups of them; a step of an optimizer gets the mean of the
// micro-batches since the last one.
//
// A stage may block. The threads have the LibTorch thread state (autocast) and the current streams of the
// thread that called step(). If a stage throws, step() throws an rpc::Error with the stage, the micro-batch
// and the action, and no gradient is added; stages may have made some of their optimizer's steps. A stage
// that runs is not interrupted: step() returns when it has ended. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/step_target.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/schedule/simulate.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace weft::pipeline {

struct LocalOptions {
  Loss loss;
  bool mean_loss = true;  // false: the losses of micro-batches are added
  // Of each stage's parameters that require grad when the pipeline is made. Stages must not share parameters
  // if it is set.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // By rank of the schedule; empty: the parameters and inputs stay where they are. A parameter of stages on
  // several devices is unsupported.
  std::vector<c10::Device> devices = {};
  // For a value that a stage waits for. Beyond it the step fails with deadline_exceeded, which
  // names what the ranks compute at that time.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
};

// The result of one step.
struct LocalStep {
  std::vector<at::Tensor> losses;  // by micro-batch, without their weights
  at::Tensor loss;                 // of the batch
  schedule::Timeline timeline;     // as measured: schedule::svg() shows it next to the prediction
};

class WEFT_EXPORT LocalPipeline {
 public:
  // The schedule has the graph's number of stages; messages in it are not needed. invalid_argument: it is
  // invalid with the graph's edges, there is no loss, or it steps parameters and there is no optimizer.
  // unsupported: replicated or sharded stages; ties, and an optimizer.
  LocalPipeline(StageGraph graph, schedule::Schedule schedule, LocalOptions options);
  ~LocalPipeline();
  LocalPipeline(const LocalPipeline&) = delete;
  LocalPipeline& operator=(const LocalPipeline&) = delete;

  // inputs, targets: data with equally many rows. If there are fewer rows than micro-batches, each row is
  // one. invalid_argument: no rows, or a tensor that requires grad. failed_precondition: the schedule has no
  // backward.
  LocalStep step(const Values& inputs, const Values& targets);
  // The last stage's outputs of all rows, without gradients. All stages run in eval mode or not as they are.
  Values evaluate(const Values& inputs);

  // Of a stage; for its learning rate and its state, between two steps. Its step() and move_to() are the
  // pipeline's. failed_precondition: no optimizer.
  dist_optim::StepTarget& optimizer(int stage);
  const StageGraph& graph() const;
  const schedule::Schedule& schedule() const;  // with the graph's edges

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::pipeline
