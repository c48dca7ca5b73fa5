// ShardOptions: in which types the ranks compute with parameters that are split and reduce their gradients,
// and where the parts are.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

namespace weft::sharded {

// The parts, their gradients and so the optimizer keep the type of the parameters.
struct ShardOptions {
  // Of floating-point parameters that are gathered, and of the gradients that are reduced; empty: as the
  // parameters are, and as `compute`.
  std::optional<at::ScalarType> compute = {}, reduction = {};
  bool in_host_memory = false;  // the parts, while the module is on a device
};

}  // namespace weft::sharded
