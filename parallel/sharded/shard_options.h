// ShardOptions: the types in which ranks compute with split parameters and reduce their gradients, and the
// memory of the parts.
#pragma once

#include <weft/parallel/data_parallel/options.h>

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::weights {
class InitialValues;
}

namespace weft::sharded {

// The types of a part of a module.
struct PrecisionOf {
  // A pattern, in which `*` matches any text without a dot. The entry is for the parameters and buffers whose
  // name matches, or the name of a module that contains them. Parameters of one unit with other types are
  // gathered and reduced by collectives of their own.
  std::string pattern;
  data_parallel::MixedPrecision types = {};
  // Whether a block that matches converts its floating-point inputs to `types.parameters`, if that is set.
  bool convert_inputs = true;
};

// The parts and their gradients, and therefore the optimizer, use the type of the parameters.
struct ShardOptions {
  // compute: the type of gathered floating-point parameters; nullopt: their own type. reduction: the type in
  // which gradients are reduced; nullopt: that of `compute`.
  std::optional<at::ScalarType> compute = {}, reduction = {};
  // Other types than `compute` and `reduction` for the parameters whose names match. The first entry that
  // matches applies; one that matches nothing has no effect. Only `types.parameters` and `types.reduction`
  // are used: nothing converts buffers, or the inputs of a stage after the first one.
  std::vector<PrecisionOf> precision_of = {};
  bool in_host_memory = false;  // true: the parts are in host memory, also if the module is on a device
  // If weights::deferred() has constructed the module: how its values are computed. Each rank computes one
  // parameter at a time, and keeps its part. All ranks compute with the random state of rank 0, so the parts
  // are those of one whole module. initialize: false: the parts are zero, for load_weights().
  std::shared_ptr<weights::InitialValues> values = {};
  bool initialize = true;
};

}  // namespace weft::sharded
