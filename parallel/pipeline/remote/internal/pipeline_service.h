// PipelineService: the RPC service of the agents of a pipeline. Thread-safety: as PipelineLayer.
//
//   install  The driver calls a worker, which builds the stages of a rank and returns an RRef to each.
//   put      A worker sends a value to another worker, which replies when its stage takes the value.
//   commit   The driver calls a stage, which returns a copy of its state, taken between two steps.
//   restore  The driver calls a stage, which restores such a copy after the end of all earlier passes.
#pragma once

#include <weft/parallel/pipeline/remote/internal/worker_messages.h>
#include <weft/parallel/pipeline/remote/pipeline_layer.h>
#include <weft/parallel/pipeline/remote/stage_module.h>
#include <weft/rref/rref.h>

namespace weft::pipeline {

struct WEFT_EXPORT PipelineService {
  std::vector<rref::RRef<StageModule>> install(WorkerPlan plan);
  rpc::Future<void> put(rpc::CallContext& call, ValueMessage message);
  rpc::Future<StageCommit> commit(rpc::CallContext& call);
  // workers: the agents by rank, used from the next step on.
  rpc::Future<void> restore(rpc::CallContext& call, StageCommit commit, std::vector<rpc::AgentId> workers);

  using Service = rpc::Service<"weft.pipeline", rpc::Method<"install", &PipelineService::install>,
                               rpc::Method<"put", &PipelineService::put, rpc::non_blocking>,
                               rpc::Method<"commit", &PipelineService::commit>,
                               rpc::Method<"restore", &PipelineService::restore>>;

  std::shared_ptr<PipelineLayer> layer;  // of the agent
  rpc::Agent* agent = nullptr;           // outlives the service
};

}  // namespace weft::pipeline
