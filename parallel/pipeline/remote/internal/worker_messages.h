// The arguments of calls to the workers of a pipeline (pipeline_service.h). Plain data.
#pragma once

#include <weft/dist_optim/service/module_snapshot.h>
#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/remote/messages.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/codec/agent_id_codec.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::schedule {

WEFT_CODEC(Edge, from, to)

}  // namespace weft::schedule

namespace weft::pipeline {

// All that a worker needs to build the stages of its rank.
struct WorkerPlan {
  PipelineId pipeline;
  int rank = 0;
  std::vector<rpc::AgentId> workers;  // by rank
  std::string schedule;               // in text form (schedule/text.h)
  int microbatches = 0;
  std::vector<std::string> layers;  // the names of the layers in the driver's model
  std::vector<int> cuts;
  std::optional<std::uint64_t> seed;
  std::string device;  // empty: the layers stay on the devices on which they were built
  std::int64_t timeout_ns = 0;
  bool mean_loss = true;
  std::optional<dist_optim::OptimizerSpec> optimizer;  // set if the schedule has optimizer steps
};
WEFT_CODEC(WorkerPlan, pipeline, rank, workers, schedule, microbatches, layers, cuts, seed, device,
           timeout_ns, mean_loss, optimizer)

// A value that one stage sends to another.
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
