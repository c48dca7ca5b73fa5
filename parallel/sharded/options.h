// Options of a FullyShardedDataParallel.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/options.h>
#include <weft/parallel/sharded/shard_options.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

struct Options {
  // A pattern for the names of the modules that are blocks, such as "layers.*": `*` matches any text without
  // a dot. These modules must be entries of a torch::nn::Sequential that take and return one tensor. A
  // Block<M> is always a block. Parameters outside of all blocks are whole during all of forward and
  // backward.
  std::string block = {};
  // Patterns, as for `block`. If the name of a parameter or buffer matches, or the name of a module that
  // contains it, it is neither split nor broadcast nor converted, and its gradient is not reduced. A block
  // within such a module is split nevertheless. The ranks may have different patterns.
  std::vector<std::string> ignored = {};
  // true: parameters are split again between a block's forward and its backward (ZeRO-3). false: they stay
  // whole from the forward to the end of the backward (ZeRO-2), which saves half of the gathers.
  bool reshard_after_forward = true;
  // As in DistributedDataParallel. The parts and their gradients, and therefore the optimizer, use the
  // parameters' type. Each block converts its floating-point inputs to `parameters`, and gets copies of
  // containers of tensors. Its outputs keep their types.
  data_parallel::MixedPrecision mixed_precision = {};
  // Other types than those of `mixed_precision`. The first entry that matches a parameter, a buffer or a
  // block applies to it instead:
  //   {{"layers.*.norm", {.parameters = at::kFloat}}, {"head", {}}}
  // A module that is no block converts its inputs itself.
  std::vector<PrecisionOf> precision_of = {};
  // true: the ranks' parts and their gradients, and therefore the optimizer's state, are in host memory.
  // Whole parameters are still gathered on the module's device.
  bool offload = false;
  // For a module that weights::deferred() has constructed, see ShardOptions.
  std::shared_ptr<weights::InitialValues> values = {};
  bool initialize = true;
  // Ranks that have the same parts (hybrid sharding): `mesh.group("replicate")`, if the sharding uses
  // `mesh.group("shard")`. Gradients are averaged over both groups.
  std::optional<collectives::Group> replicas = {};
};

}  // namespace weft::sharded
