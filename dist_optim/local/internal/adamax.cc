#include <weft/dist_optim/local/internal/adamax.h>

#include <cmath>

namespace weft::dist_optim {

Adamax::Adamax(std::vector<torch::Tensor> parameters, const AdamaxOptions& options)
    : LocalOptimizer(std::move(parameters), options) {
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.beta1() >= 0 && options.beta1() < 1, "Invalid beta1: ", options.beta1());
  TORCH_CHECK(options.beta2() >= 0 && options.beta2() < 1, "Invalid beta2: ", options.beta2());
  TORCH_CHECK(options.weight_decay() >= 0, "Invalid weight_decay value: ", options.weight_decay());
}

void Adamax::update(at::Tensor& parameter, const at::Tensor& gradient, const AdamaxOptions& options,
                    AdamaxParamState& state) const {
  require_dense(gradient, "Adamax");
  const auto t = static_cast<double>(++state.step());
  at::Tensor g = options.maximize() ? -gradient : gradient;
  if (options.weight_decay() != 0) g = g.add(parameter, options.weight_decay());
  g = real_parts(g);
  at::Tensor m = real_parts(state.exp_avg()), n = real_parts(state.exp_inf());
  m.lerp_(g, 1 - options.beta1());
  at::maximum_out(n, n.mul_(options.beta2()), g.abs().add_(options.eps()));
  real_parts(parameter).addcdiv_(m, n, -options.lr() / (1 - std::pow(options.beta1(), t)));
}

}  // namespace weft::dist_optim
