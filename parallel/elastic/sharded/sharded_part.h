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
// docs/elastic.md, "Sharded state", describes what is lost if workers die. The objects must outlive the part.
// Not thread-safe.
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
  // The number of other ranks on which a commit keeps a copy of each shard. That many workers may die between
  // two commits. Use 0 if several ranks have equal shards, as the replicas of hybrid sharding. It must be
  // equal on all ranks.
  int copies = 1;
};

// The functions of a part for other objects that are split over the ranks: several modules, or a mesh.
struct ShardedObjects {
  // Splits the objects over a generation's group; called on all its ranks. Their values are unspecified
  // afterwards.
  std::function<void(const collectives::Group& group)> set_group;
  // Adds the live shard to `to`. Its tensors use the objects' memory, except those of an optimizer.
  std::function<void(sharded::SlicedState& to)> add_to;
  // Like add_to(), but adds those tensors of the optimizer's state that `names` lists, in new memory without
  // values. The part then writes the values.
  std::function<void(sharded::SlicedState& to, const std::vector<std::string>& names)> add_wanted_to;
  // Loads the values that do not use the objects' memory, and SlicedState::notes.
  std::function<void(const sharded::SlicedState& from)> take_from;
};

WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(ShardedObjects objects, ShardedPartOptions options = {});
// The part for a module's parameters and buffers, and its optimizer. Options::replicas of the module must not
// be set.
WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(sharded::ShardedModule& module,
                                                    sharded::FullyShardedOptimizer& optimizer,
                                                    ShardedPartOptions options = {});
// The part for the optimizer. The part also sets the groups of both objects. Before this part, add the
// replica's module to the State, as a separate part.
WEFT_EXPORT std::shared_ptr<StatePart> sharded_part(data_parallel::Replica& replica,
                                                    sharded::ShardedOptimizer& optimizer,
                                                    ShardedPartOptions options = {});

}  // namespace weft::elastic
