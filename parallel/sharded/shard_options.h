// ShardOptions: the types in which ranks compute with split parameters and reduce their gradients, and the
// memory of the parts.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>

namespace weft::weights {
class InitialValues;
}

namespace weft::sharded {

// The parts and their gradients, and therefore the optimizer, use the type of the parameters.
struct ShardOptions {
  // compute: the type of gathered floating-point parameters; nullopt: their own type. reduction: the type in
  // which gradients are reduced; nullopt: that of `compute`.
  std::optional<at::ScalarType> compute = {}, reduction = {};
  bool in_host_memory = false;  // true: the parts are in host memory, also if the module is on a device
  // If weights::deferred() has constructed the module: how its values are computed. Each rank computes one
  // parameter at a time, and keeps its part. All ranks compute with the random state of rank 0, so the parts
  // are those of one whole module. initialize: false: the parts are zero, for load_weights().
  std::shared_ptr<weights::InitialValues> values = {};
  bool initialize = true;
};

}  // namespace weft::sharded
