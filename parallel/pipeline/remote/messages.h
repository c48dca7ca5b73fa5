// The arguments and results of calls between the driver of a pipeline and its stages (stage_module.h). Plain
// data.
#pragma once

#include <weft/dist_optim/service/module_snapshot.h>
#include <weft/parallel/pipeline/rank_spans.h>
#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <cstdint>
#include <vector>

namespace weft::pipeline {

// Identifies a pipeline: the agent of its driver, and a number that the driver has assigned.
struct PipelineId {
  std::uint64_t driver = 0;  // the incarnation of the driver's agent
  std::uint64_t number = 0;
  auto operator<=>(const PipelineId&) const = default;
};
WEFT_CODEC(PipelineId, driver, number)

// The driver's call of a stage in a step.
struct StagePart {
  std::uint64_t step = 0;
  bool with_backward = true;
  std::int64_t rows = 0;
  Values inputs;   // all rows of the step's inputs that the stage uses; the others are undefined
  Values targets;  // for the last stage, if with_backward is true
};
WEFT_CODEC(StagePart, step, with_backward, rows, inputs, targets)

// The reply of a stage at the end of a step.
struct StageReport {
  // Set by the last stage, if the step has a backward: the loss of each micro-batch, and of the batch.
  std::vector<at::Tensor> losses;
  at::Tensor loss;
  Values outputs;   // set by the last stage, if the step has no backward: all rows
  RankSpans spans;  // set by the first stage of each rank
};
WEFT_CODEC(StageReport, losses, loss, outputs, spans)

// The state of a stage between two steps.
struct StageCommit {
  // Parameters and buffers, and the state of the optimizer: the optimizer that is attached to the module, or,
  // if the schedule steps parameters, the stage's own optimizer.
  dist_optim::ModuleSnapshot module;
  bool is_training = true;
  // The states of the worker's default generators: first of the CPU, then of the stage's device if it is not
  // the CPU.
  std::vector<at::Tensor> generators;
};
WEFT_CODEC(StageCommit, module, is_training, generators)

}  // namespace weft::pipeline
