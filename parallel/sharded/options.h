// Options of a FullyShardedDataParallel.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/options.h>

#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

struct Options {
  // Modules that are blocks, by name: `*` is any text without a dot, as in "layers.*". They are entries of a
  // torch::nn::Sequential that take one tensor and return one. Each Block<M> is a block in any case. What is
  // in no block is gathered for all of forward and backward.
  std::string block = {};
  // Parameters and buffers that stay as they are, by their names or those of modules around them, as patterns
  // like `block`: neither split nor broadcast nor converted, and the program reduces their gradients or not.
  // A block within such a module is split nevertheless. The ranks may ignore different ones.
  std::vector<std::string> ignored = {};
  // Off: parameters stay whole from a block's forward to the end of its backward (ZeRO-2), which saves half
  // of the gathers. On: they are split in between (ZeRO-3).
  bool reshard_after_forward = true;
  // As in DistributedDataParallel. The parts, their gradients and so the optimizer keep the parameters' type.
  data_parallel::MixedPrecision mixed_precision = {};
  // The ranks' parts, their gradients and so the optimizer's state are in the host's memory; parameters on a
  // device are gathered there.
  bool offload = false;
  // Ranks that have the same parts (hybrid sharding): `mesh.group("replicate")`, if the sharding uses
  // `mesh.group("shard")`. Gradients are averaged over both.
  std::optional<collectives::Group> replicas = {};
};

}  // namespace weft::sharded
