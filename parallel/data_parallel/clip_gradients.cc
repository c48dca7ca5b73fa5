#include <weft/parallel/data_parallel/clip_gradients.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <string>

namespace weft::data_parallel {

double clip_gradients(const std::vector<at::Tensor>& counted, const std::vector<at::Tensor>& gradients,
                      const std::vector<collectives::Group>& over, double max_norm, double norm_type) {
  if (!(norm_type > 0))
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "clip_grad_norm: norm_type is " + std::to_string(norm_type) + ", expected a positive number");
  const at::NoGradGuard no_grad;
  const bool is_max = norm_type == std::numeric_limits<double>::infinity();
  double sum = 0;  // of the powers of norms; if is_max, the largest norm
  for (const at::Tensor& gradient : counted) {
    if (!gradient.defined()) continue;
    const double norm =
        at::linalg_vector_norm(gradient, norm_type, std::nullopt, false, at::kDouble).item<double>();
    if (!is_max) {
      sum += std::pow(norm, norm_type);
    } else if (norm > sum || std::isnan(norm)) {  // std::max would drop a NaN
      sum = norm;
    }
  }
  const at::Tensor all = at::full({1}, sum, at::kDouble);
  for (const collectives::Group& group : over)
    group.all_reduce(all, is_max ? collectives::ReduceOp::max : collectives::ReduceOp::sum).get();
  const double total = is_max ? all.item<double>() : std::pow(all.item<double>(), 1 / norm_type);
  const double scale = max_norm / (total + 1e-6);
  if (!(scale >= 1))
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) gradient.mul_(scale);
  return total;
}

}  // namespace weft::data_parallel
