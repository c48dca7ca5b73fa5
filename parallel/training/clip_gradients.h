// clip_gradients: computes the common norm of gradients that are distributed over ranks, and clips them by
// this norm.
//
//   const double norm = clip_gradients(gradients, gradients, {group}, 1.0);   // no gradient is on two ranks
//
// FullyShardedDataParallel::clip_grad_norm() and tensor_parallel::clip_grad_norm() are implemented with it.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::training {

// If the norm of the `counted` gradients of all ranks exceeds max_norm, scales `gradients` so that this norm
// becomes max_norm. Returns the norm before scaling, with the same bits on all ranks. counted: the gradients
// of this rank that count in the norm. If several ranks have a copy of a gradient, only one of them counts
// it. over: the groups over which the norm is reduced, one after the other. norm_type: p, positive; infinity:
// the largest absolute value. A norm that is not finite also scales the gradients, as in
// torch::nn::utils::clip_grad_norm_. Gradients may be complex or sparse (COO). Undefined gradients are
// ignored. All ranks call it; it blocks. invalid_argument: norm_type is not positive.
WEFT_EXPORT double clip_gradients(const std::vector<at::Tensor>& counted,
                                  const std::vector<at::Tensor>& gradients,
                                  const std::vector<collectives::Group>& over, double max_norm,
                                  double norm_type = 2);

}  // namespace weft::training
