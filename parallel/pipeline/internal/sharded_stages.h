// shard_stages: shards the parameters of a rank's stages over its counterparts. These are the ranks that
// compute the same stages, one in each pipeline.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/parallel/sharded/sharded_units.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

namespace weft::pipeline {

struct StageShards {
  collectives::Group pipeline;      // all ranks of this pipeline
  collectives::Group counterparts;  // the ranks with the same stages in all pipelines
  sharded::ShardOptions options = {};
  std::chrono::nanoseconds timeout = {};  // of a gather or a reduction
  std::string signature = {};             // must be equal on all counterparts
};

// Returns the units of the stages, by ascending stage. All ranks of all pipelines must call it. The stages
// start with the values of rank 0 of the counterparts. invalid_argument: units_of() refuses the parameters,
// or two parameters of the pipeline have the same name. unsupported: the stages of a rank are on several
// devices. failed_precondition: the counterparts have different stages, or another rank has an error.
std::unique_ptr<sharded::ShardedUnits> shard_stages(const StageGraph& graph, const std::set<int>& stages,
                                                    const StageShards& how);
// Creates the groups for gathers and reductions. All counterparts must call it.
sharded::ShardGroups groups_of_stages(const collectives::Group& counterparts,
                                      std::chrono::nanoseconds timeout);

}  // namespace weft::pipeline
