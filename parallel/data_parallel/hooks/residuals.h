// Residuals: the part of each parameter's gradients that a lossy hook has not sent yet (error feedback).
//
// In each iteration, a hook adds the residual to the gradient, sends an approximation of the sum, and keeps
// the error as the next residual. Residuals differ between the ranks: each rank saves its own. Owned by a
// hook. Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <map>

namespace weft::data_parallel {

class WEFT_EXPORT Residuals {
 public:
  // Sets `sum` to the gradient plus the residual of the parameter; the residual is zero afterwards. If the
  // parameter has no residual, `sum` becomes a copy of the gradient. sum may be the tensor that was given to
  // keep().
  // invalid_argument: a loaded residual has another shape than the gradient.
  void take(std::size_t parameter, const at::Tensor& sum, const at::Tensor& gradient);
  // Sets the residual to this tensor, without a copy. The caller must not change the tensor until the next
  // take(). If another reduction of the parameter has called keep() since take(), its residual is added to
  // the tensor.
  void keep(std::size_t parameter, const at::Tensor& residual);

  // Write and read the entry "residuals".
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  std::map<std::size_t, at::Tensor> kept_;  // by parameter
};

}  // namespace weft::data_parallel
