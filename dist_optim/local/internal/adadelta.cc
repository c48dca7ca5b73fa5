#include <weft/dist_optim/local/internal/adadelta.h>

namespace weft::dist_optim {

Adadelta::Adadelta(std::vector<torch::Tensor> parameters, const AdadeltaOptions& options)
    : LocalOptimizer(std::move(parameters), options) {
  TORCH_CHECK(options.rho() >= 0 && options.rho() <= 1, "Invalid rho value: ", options.rho());
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.weight_decay() >= 0, "Invalid weight_decay value: ", options.weight_decay());
}

void Adadelta::update(at::Tensor& parameter, const at::Tensor& gradient, const AdadeltaOptions& options,
                      AdadeltaParamState& state) const {
  require_dense(gradient, "Adadelta");
  ++state.step();
  at::Tensor g = options.maximize() ? -gradient : gradient;
  if (options.weight_decay() != 0) g = g.add(parameter, options.weight_decay());
  g = real_parts(g);
  at::Tensor v = real_parts(state.square_avg()), u = real_parts(state.acc_delta());
  v.mul_(options.rho()).addcmul_(g, g, 1 - options.rho());
  const at::Tensor d = u.add(options.eps()).sqrt_().div_(v.add(options.eps()).sqrt_()).mul_(g);
  u.mul_(options.rho()).addcmul_(d, d, 1 - options.rho());
  real_parts(parameter).add_(d, -options.lr());
}

}  // namespace weft::dist_optim
