// shard_stages: splits the parameters of a rank's stages over the ranks that compute the same stages in other
// pipelines.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/parallel/sharded/sharded_units.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

namespace weft::pipeline {

struct StageShards {
  collectives::Group pipeline;      // all ranks of this one
  collectives::Group counterparts;  // the same stages in all pipelines
  sharded::ShardOptions options = {};
  std::chrono::nanoseconds timeout = {};  // of a gather, and of a reduction
  std::string signature = {};             // equal on the counterparts
};

// The units of the stages, in ascending order. Called by all ranks of all pipelines; the stages begin with
// the values of the first pipeline. invalid_argument: parameters that units_of() refuses, or a name that two
// parameters of the pipeline have. unsupported: the stages of a rank are on several devices.
// failed_precondition: the counterparts have different stages, or another rank's error.
std::unique_ptr<sharded::ShardedUnits> shard_stages(const StageGraph& graph, const std::set<int>& stages,
                                                    const StageShards& how);
// Called by all counterparts.
sharded::ShardGroups groups_of_stages(const collectives::Group& counterparts,
                                      std::chrono::nanoseconds timeout);

}  // namespace weft::pipeline
