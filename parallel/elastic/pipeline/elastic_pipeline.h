// ElasticPipeline: trains one model in pipelines while workers join and die. The number of pipelines depends
// on the number of workers.
//
//   elastic::ElasticPipeline model{layers(), {.cuts = {3, 6}, .seed = 1}, schedule,
//                                  {.loss = loss, .optimizer = torch::optim::AdamWOptions(3e-4)}};
//   auto stages = model.part();
//   state.add("stages", stages).add("step", step);
//   elastic::run(job, state, [&](const Group&) {
//     for (; step < 1000; state.commit_every(10)) {
//       if (model.has_stages()) model.pipeline().step({images(step)}, {labels(step)});
//       ++step;
//     }
//   });
//
// Every worker constructs the object before run(), with all stages. In training, a worker keeps only the
// stages that it computes. At the beginning of each generation the ranks form pipelines
// (plan/pipeline_places.h): survivors keep their stages and their GroupPipeline, which gets new groups. A
// rank that replaces a lost one, or is in an additional pipeline, builds its stages, and all stages get the
// last commit. The ranks that compute the same stages in all pipelines are a
// GroupPipelineOptions::data_parallel group. Ranks for which no pipeline is left are spares: they have no
// stages, and take part in commits.
//
// If a rank is lost, the commits of its stages are still on the ranks that compute these stages in other
// pipelines, and as copies on the ranks before the lost rank in the group (ShardedPartOptions::copies). The
// object must outlive the part. Not thread-safe.
#pragma once

#include <weft/parallel/elastic/plan/pipeline_places.h>
#include <weft/parallel/elastic/sharded/sharded_part.h>
#include <weft/parallel/pipeline/group_pipeline.h>

#include <memory>

namespace weft::elastic {

class WEFT_EXPORT ElasticPipeline {
 public:
  // cut: `built` must not be set. The first generation starts with the parameters of its rank 0.
  // invalid_argument: the options have no optimizer, or they have groups or sharded stages; also the errors
  // of cut(). The constructor of GroupPipeline checks the other options at the beginning of the first
  // generation.
  ElasticPipeline(const pipeline::LayerGraph& layers, pipeline::CutOptions cut, schedule::Schedule schedule,
                  pipeline::GroupPipelineOptions options);
  ~ElasticPipeline();
  ElasticPipeline(const ElasticPipeline&) = delete;
  ElasticPipeline& operator=(const ElasticPipeline&) = delete;

  // The parameters, buffers and optimizers of the stages, for State::add(). If a generation has fewer ranks
  // than one pipeline, run() fails with failed_precondition: set WorkerLimits::min.
  std::shared_ptr<StatePart> part(ShardedPartOptions options = {});

  // --- The present generation; constant until the next one begins ---
  int pipelines() const;        // the number of pipelines; 0 before the first generation
  bool has_stages() const;      // false: a spare
  PipelinePlace place() const;  // of this rank. failed_precondition: a spare
  // This rank's stages. After a change of the stages, pipeline() returns another object than before.
  // failed_precondition: this rank is a spare.
  pipeline::GroupPipeline& pipeline() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::elastic
