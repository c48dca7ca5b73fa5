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
// Each rank of the schedule is a thread. A step splits its inputs and targets along the first dimension. If
// the loss of a micro-batch is a mean over its rows (LocalOptions::mean_loss), the gradients added to `.grad`
// are those of the loss of the whole batch. Batch norms normalize each micro-batch. The schedule defines the
// order in which gradients are added. The random numbers that the stages draw depend on the timing of the
// threads, because LibTorch has one generator for all threads; give a stage generators of its own
// (Stage::generators). A recomputed stage that draws from LibTorch's generator fails the step with
// failed_precondition if there are several ranks, or if another thread of the program draws at that time.
//
// With LocalOptions::optimizer the stages step their parameters, at the optimizer steps of the schedule or,
// if it has none, at the end of the step; `.grad` is not used. In schedule::pipedream() each micro-batch is a
// batch. In schedule::pipedream_2bw() the micro-batches form groups, and each group is a batch. An optimizer
// step uses the mean over the micro-batches since the previous optimizer step.
//
// A stage may block. The threads have the LibTorch thread state (autocast) and the current streams of the
// thread that called step(). If a stage throws, step() throws an rpc::Error with the stage, the micro-batch
// and the action, and no gradient is added; stages may have made some of their optimizer steps. A running
// stage is not interrupted: step() returns when the stage has completed. Not thread-safe.
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
  // The optimizer of each stage's parameters that require grad at a step. If it is set, stages must not share
  // parameters.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // The device of each rank of the schedule; empty: the parameters and inputs stay on their devices.
  // unsupported: stages on several devices share a parameter.
  std::vector<c10::Device> devices = {};
  // The time for which a stage waits for a value. When it expires, the step fails with deadline_exceeded,
  // which names the actions that the ranks are computing.
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
  // The schedule must have as many stages as the graph; it needs no messages. invalid_argument: the schedule
  // is invalid with the graph's edges, there is no loss, or the schedule has optimizer steps and there is no
  // optimizer. unsupported: replicated or sharded stages; ties together with an optimizer.
  LocalPipeline(StageGraph graph, schedule::Schedule schedule, LocalOptions options);
  ~LocalPipeline();
  LocalPipeline(const LocalPipeline&) = delete;
  LocalPipeline& operator=(const LocalPipeline&) = delete;

  // inputs, targets: tensors with equally many rows. If there are fewer rows than micro-batches, each row is
  // a micro-batch. invalid_argument: no rows, or a tensor that requires grad. failed_precondition: the
  // schedule has no backward.
  LocalStep step(const Values& inputs, const Values& targets);
  // Returns the last stage's outputs of all rows, without gradients. A 0-dimensional output, such as an
  // auxiliary loss, is combined from those of the micro-batches as the losses are (LocalOptions::mean_loss).
  // It does not change the stages' training mode.
  Values evaluate(const Values& inputs);

  // The optimizer of a stage. Use it between steps to change its learning rate and state; do not call its
  // step() and move_to(). The reference is valid until the next step. failed_precondition: there is no
  // optimizer.
  dist_optim::StepTarget& optimizer(int stage);
  const StageGraph& graph() const;
  const schedule::Schedule& schedule() const;  // with the graph's edges

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::pipeline
