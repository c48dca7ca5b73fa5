// What a DistLBFGS and the owners of its parameters say to one another. Thread-safety: values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/dist_optim/lbfgs/vectors.h>
#include <weft/rpc/codec/struct_codec.h>

#include <vector>

namespace weft::dist_optim {

WEFT_CODEC(LbfgsProducts, s_y, y_s, y_y, s_g, y_g, g_g)
WEFT_CODEC(LbfgsDirection, joins, scale, y_weights, s_weights)
WEFT_CODEC(LbfgsMeasures, largest, sum, slope, products)

// The loss was evaluated where the parameters are.
struct LbfgsEvaluation {
  std::vector<dist_autograd::PassId> passes;  // whose gradients add up
  std::uint64_t point = 1;
  std::vector<std::uint64_t> keep;  // of the points before
  bool settle = false;              // go on from here
};
WEFT_CODEC(LbfgsEvaluation, passes, point, keep, settle)

}  // namespace weft::dist_optim
