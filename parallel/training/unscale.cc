#include <weft/parallel/training/unscale.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <utility>

namespace weft::training {

bool unscale_gradients(const collectives::Group& group, const torch::optim::Optimizer& optimizer,
                       double factor) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameters : optimizer.param_groups())
    for (const at::Tensor& parameter : parameters.params()) gradients.push_back(parameter.grad());
  return unscale_gradients(group, std::move(gradients), factor);
}

bool unscale_gradients(const collectives::Group& group, std::vector<at::Tensor> gradients, double factor) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> alike;  // by device and dtype
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    alike[{values.device().str(), values.scalar_type()}].push_back(values);
  }
  at::Tensor found = at::zeros({1}, at::kFloat);
  for (auto& [kind, values] : alike) {
    const at::TensorOptions options = values.front().options().dtype(at::kFloat);
    at::Tensor found_here = at::zeros({1}, options);
    at::_amp_foreach_non_finite_check_and_unscale_(values, found_here, at::full({1}, 1 / factor, options));
    found = at::maximum(found, found_here.to(found.device()));
  }
  group.all_reduce(found, collectives::ReduceOp::max).get();
  return found.item<float>() == 0;
}

}  // namespace weft::training
