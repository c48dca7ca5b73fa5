// PipelineService: what the agents of a pipeline ask each other. Thread-safety: as the layer's.
//
//   install  from the driver to a worker: build the stages of a rank; answered with an RRef for each
//   put      from worker to worker: a value; answered when the stage that takes it uses it
//   commit   from the driver, about a stage: a copy of what it has, taken between two steps
//   restore  from the driver, about a stage: it has that again, once the passes of the steps before have
//   ended
#pragma once

#include <weft/parallel/pipeline/pipeline_layer.h>
#include <weft/parallel/pipeline/remote/stage_module.h>
#include <weft/rref/rref.h>

namespace weft::pipeline {

struct WEFT_EXPORT PipelineService {
  std::vector<rref::RRef<StageModule>> install(WorkerPlan plan);
  rpc::Future<void> put(rpc::CallContext& call, ValueMessage message);
  rpc::Future<StageCommit> commit(rpc::CallContext& call);
  // workers: by rank, from the next step on.
  rpc::Future<void> restore(rpc::CallContext& call, StageCommit commit, std::vector<rpc::AgentId> workers);

  using Service = rpc::Service<"weft.pipeline", rpc::Method<"install", &PipelineService::install>,
                               rpc::Method<"put", &PipelineService::put, rpc::non_blocking, rpc::resumable>,
                               rpc::Method<"commit", &PipelineService::commit>,
                               rpc::Method<"restore", &PipelineService::restore>>;

  std::shared_ptr<PipelineLayer> layer;
  rpc::Agent* agent = nullptr;  // outlives the service
};

}  // namespace weft::pipeline
