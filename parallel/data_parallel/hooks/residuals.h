// Residuals: the part of each parameter's gradients that a lossy hook has not sent yet (error feedback).
//
// In each iteration a hook adds the residual to the gradient, sends what it can of the sum, and keeps the
// rest as the next residual. Residuals differ between the ranks: each rank saves its own. Owned by a hook.
// Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <map>

namespace weft::data_parallel {

class WEFT_EXPORT Residuals {
 public:
  // sum = gradient + the residual of the parameter, which is zero afterwards. Without a residual, it is a
  // copy. sum may be the tensor that was given to keep(), whose memory then serves again.
  // invalid_argument: the residual, which was loaded, has another shape than the gradient.
  void take(std::size_t parameter, const at::Tensor& sum, const at::Tensor& gradient);
  // Until the next take(), the caller leaves the tensor as it is.
  void keep(std::size_t parameter, const at::Tensor& residual);

  // As the entry "residuals".
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::map<std::size_t, at::Tensor> kept_;  // by parameter
};

}  // namespace weft::data_parallel
