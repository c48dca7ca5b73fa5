// sharded_part(): a State's part for parameters and optimizers that are split over the ranks.
//
//   job.join().get();
//   auto alone = Group::create(agent, {.name = "alone", .members = {agent.name()}}).get();
//   sharded::FullyShardedDataParallel fsdp{alone, model, {.block = "layers.*"}};
//   sharded::FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamWOptions(3e-4));
//   auto sharded = elastic::sharded_part(fsdp, optimizer);
//   state.add("sharded", sharded);
//   elastic::run(job, state, [&](const Group& group) { ... });   // fsdp has the generation's group
//
// Every worker constructs the objects before run(), in a group of this worker alone. In each generation the
// part gives them the generation's group, and divides the last commit among its ranks. A commit has this
// rank's shard and copies of the shards of the next ranks (ShardedPartOptions::copies), in host memory.
// docs/elastic.md, "Sharded state", describes what is lost if workers die. The objects outlive the part. Not
// thread-safe.
#pragma once

#include <weft/parallel/elastic/state_part.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/sharded/sharded_module.h>
#include <weft/parallel/sharded/sharded_optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::elastic {

struct ShardedPartOptions {
  // A commit keeps each shard on as many other ranks, too: as many workers may die between two commits. 0 if
  // ranks have equal shards anyway, as with the replicas of hybrid sharding. Equal on all ranks.
  int copies = 1;
};

// What the part does with other objects that are split over the ranks: several modules, or a mesh.
struct ShardedObjects {
  // On all ranks of a generation's group: splits them over it. Their values do not matter then.
  std::function<void(const collectives::Group& group)> set_group;
  // The live shard. Values are the objects' memory, except those of an optimizer.
  std::function<void(sharded::SlicedState& to)> add_to;
  // The same with space for an optimizer's state, as far as it has these names. The part fills the values.
  std::function<void(sharded::SlicedState& to, const std::vector<std::string>& names)> add_wanted_to;
  // What is not the objects' memory, with the notes.
  std::function<void(const sharded::SlicedState& from)> take_from;
};

WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(ShardedObjects objects, ShardedPartOptions options = {});
// Parameters, buffers and optimizer. The module has no Options::replicas.
WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(sharded::ShardedModule& module,
                                                    sharded::FullyShardedOptimizer& optimizer,
                                                    ShardedPartOptions options = {});
// The optimizer, and the groups of both. The module is a part by itself, which is added before.
WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(data_parallel::Replica& replica,
                                                    sharded::ShardedOptimizer& optimizer,
                                                    ShardedPartOptions options = {});

}  // namespace weft::elastic
