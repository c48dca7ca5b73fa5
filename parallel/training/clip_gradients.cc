#include <weft/parallel/training/clip_gradients.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

namespace weft::training {
namespace {

at::Tensor norm_of(const at::Tensor& values, double norm_type) {
  return at::linalg_vector_norm(values, norm_type, std::nullopt, false, at::kDouble);
}

// Real values with the gradient's norm. The same element may occur several times in a sparse gradient.
at::Tensor values_of(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  return values.is_complex() ? values.abs() : values;
}

}  // namespace

double clip_gradients(const std::vector<at::Tensor>& counted, const std::vector<at::Tensor>& gradients,
                      const std::vector<collectives::Group>& over, double max_norm, double norm_type) {
  if (!(norm_type > 0))
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "clip_grad_norm: norm_type is " + std::to_string(norm_type) + ", expected a positive number");
  const at::NoGradGuard no_grad;
  const bool is_max = norm_type == std::numeric_limits<double>::infinity();
  // The norm of norms is that of all elements. One value for each device is read, because a read waits for
  // the device.
  std::unordered_map<c10::Device, std::vector<at::Tensor>> norms;
  for (const at::Tensor& gradient : counted)
    if (gradient.defined()) norms[gradient.device()].push_back(norm_of(values_of(gradient), norm_type));
  std::vector<at::Tensor> of_devices{at::zeros({}, at::kDouble)};
  for (const auto& [device, of_device] : norms)
    of_devices.push_back(norm_of(at::stack(of_device), norm_type).cpu());
  const double own = norm_of(at::stack(of_devices), norm_type).item<double>();
  const at::Tensor all = at::full({1}, is_max ? own : std::pow(own, norm_type), at::kDouble);
  for (const collectives::Group& group : over)
    group.all_reduce(all, is_max ? collectives::ReduceOp::max : collectives::ReduceOp::sum).get();
  const double total = is_max ? all.item<double>() : std::pow(all.item<double>(), 1 / norm_type);
  const double scale = max_norm / (total + 1e-6);
  if (!(scale >= 1))
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) (gradient.is_sparse() ? gradient._values() : gradient).mul_(scale);
  return total;
}

}  // namespace weft::training
