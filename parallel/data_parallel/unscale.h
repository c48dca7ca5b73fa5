// unscale_gradients: divides gradients by the factor by which the loss was multiplied, on all ranks of a
// group, and finds out whether all of them are finite on all ranks.
//
//   dist_optim::GradScaler scaler;
//   scaler.scale(loss).backward();
//   const bool finite = data_parallel::unscale_gradients(ddp.group(), optimizer, scaler.factor());
//   if (finite) optimizer.step();
//   scaler.update(finite);      // all ranks skip the same steps, and have the same factor
//
// Without the agreement a rank whose own part of the gradients is finite would step alone: of parameters that
// are not reduced, for example, or of a slice of the optimizer's state.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace weft::data_parallel {

// Blocks; all ranks call it. Undefined gradients are left out. If a gradient is not finite on any rank, all
// ranks get false, and the gradients' values are unspecified.
WEFT_EXPORT bool unscale_gradients(const collectives::Group& group, const torch::optim::Optimizer& optimizer,
                                   double factor);
WEFT_EXPORT bool unscale_gradients(const collectives::Group& group, std::vector<at::Tensor> gradients,
                                   double factor);

}  // namespace weft::data_parallel
