// unscale_gradients: divides the gradients by the loss scale on all ranks of a group, and returns whether all
// gradients are finite on all ranks.
//
//   dist_optim::GradScaler scaler;
//   scaler.scale(loss).backward();
//   const bool finite = training::unscale_gradients(ddp.group(), optimizer, scaler.factor());
//   if (finite) optimizer.step();
//   scaler.update(finite);      // all ranks skip the same steps, and have the same factor
//
// If ranks have different gradients (for example of parameters that are not reduced, or of slices), only some
// of them may have values that are not finite. Without this agreement, the other ranks would step alone.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace weft::training {

// All ranks call it, and it blocks. Undefined gradients are ignored. If at least one rank has a gradient that
// is not finite, the function returns false on all ranks, and the gradients' values are unspecified.
WEFT_EXPORT bool unscale_gradients(const collectives::Group& group, const torch::optim::Optimizer& optimizer,
                                   double factor);
WEFT_EXPORT bool unscale_gradients(const collectives::Group& group, std::vector<at::Tensor> gradients,
                                   double factor);

}  // namespace weft::training
