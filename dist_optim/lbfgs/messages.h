// The messages between a DistLBFGS and the owners of its parameters. Thread-safety: values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/dist_optim/lbfgs/vectors.h>
#include <weft/rpc/codec/struct_codec.h>

#include <vector>

namespace weft::dist_optim {

WEFT_CODEC(LbfgsProducts, s_y, y_s, y_y, s_g, y_g, g_g)
WEFT_CODEC(LbfgsDirection, joins, scale, y_weights, s_weights)
WEFT_CODEC(LbfgsMeasures, largest, sum, slope, products)

// The loss was evaluated at the present parameters.
struct LbfgsEvaluation {
  std::vector<dist_autograd::PassId> passes;  // whose gradients add up
  std::uint64_t point = 1;
  std::vector<std::uint64_t> keep;  // of the previous points
  bool settle = false;              // continue from here
};
WEFT_CODEC(LbfgsEvaluation, passes, point, keep, settle)

}  // namespace weft::dist_optim
