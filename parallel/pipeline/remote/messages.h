// What the driver of a pipeline and its workers tell each other. Plain data.
#pragma once

#include <weft/dist_optim/service/optimizer_service.h>
#include <weft/parallel/pipeline/internal/rank_spans.h>
#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/internal/value_exchange.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::schedule {

WEFT_CODEC(Edge, from, to)
WEFT_CODEC(Span, action, start, finish)

}  // namespace weft::schedule

namespace weft::pipeline {

WEFT_CODEC(RankSpans, spans, began_ns)

// A pipeline of a driver's agent.
struct PipelineId {
  std::uint64_t driver = 0;  // incarnation
  std::uint64_t number = 0;
  auto operator<=>(const PipelineId&) const = default;
};
WEFT_CODEC(PipelineId, driver, number)

// What a worker needs to have its stages.
struct WorkerPlan {
  PipelineId pipeline;
  int rank = 0;
  std::vector<rpc::AgentId> workers;  // by rank
  std::string schedule;               // its text form
  int microbatches = 0;
  std::vector<std::string> layers;  // the names that the driver's model has
  std::vector<int> cuts;
  std::optional<std::uint64_t> seed;
  std::string device;  // empty: as the layers are built
  std::int64_t timeout_ns = 0;
  bool mean_loss = true;
  std::optional<dist_optim::OptimizerSpec> optimizer;  // of schedules that step
};
WEFT_CODEC(WorkerPlan, pipeline, rank, workers, schedule, microbatches, layers, cuts, seed, device,
           timeout_ns, mean_loss, optimizer)

// A stage's part of a step.
struct StagePart {
  std::uint64_t step = 0;
  bool with_backward = true;
  std::int64_t rows = 0;
  Values inputs;   // of the step, all rows: those that the stage uses
  Values targets;  // for the last stage, with a backward
};
WEFT_CODEC(StagePart, step, with_backward, rows, inputs, targets)

// What a stage answers at the end of a step.
struct StageReport {
  // Of the last stage: by micro-batch, and of the batch.
  std::vector<at::Tensor> losses;
  at::Tensor loss;
  Values outputs;   // of the last stage, without a backward: all rows
  RankSpans spans;  // of the first of a rank's stages
};
WEFT_CODEC(StageReport, losses, loss, outputs, spans)

// What a stage has between two steps.
struct StageCommit {
  // Parameters and buffers, and the state of their optimizer: of the one that is attached, or of the stage's
  // own.
  dist_optim::ModuleSnapshot module;
  bool is_training = true;
  // The states of the worker's default generators: of the CPU, and of the stage's device.
  std::vector<at::Tensor> generators;
};
WEFT_CODEC(StageCommit, module, is_training, generators)

// A value on its way from one stage to another.
struct ValueMessage {
  PipelineId pipeline;
  std::uint64_t step = 0;
  schedule::Edge edge;
  int microbatch = 0;
  bool gradient = false;
  SentValues sent;
};
WEFT_CODEC(ValueMessage, pipeline, step, edge, microbatch, gradient, sent)

}  // namespace weft::pipeline
