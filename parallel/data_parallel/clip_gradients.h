// clip_gradients: scales gradients, of which each rank has a part, by the norm of all of them together.
//
//   const double norm = clip_gradients(gradients, gradients, {group}, 1.0);   // no gradient is on two ranks
//
// FullyShardedDataParallel::clip_grad_norm() and tensor_parallel::clip_grad_norm() are implemented with it.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::data_parallel {

// Scales `gradients` to max_norm if the norm of all ranks' `counted` exceeds it. Returns the norm before, the
// same bits on all ranks. counted: those of `gradients` that no other rank counts. over: the norm is reduced
// over one group after the other. norm_type: p, positive; infinity is the largest absolute value. A norm that
// is not finite is returned, and multiplies the gradients, as in torch::nn::utils::clip_grad_norm_.
// Undefined gradients are left out. Blocks; all ranks call it. invalid_argument: norm_type.
WEFT_EXPORT double clip_gradients(const std::vector<at::Tensor>& counted,
                                  const std::vector<at::Tensor>& gradients,
                                  const std::vector<collectives::Group>& over, double max_norm,
                                  double norm_type = 2);

}  // namespace weft::data_parallel
