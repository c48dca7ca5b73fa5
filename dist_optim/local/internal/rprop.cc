#include <weft/dist_optim/local/internal/rprop.h>

namespace weft::dist_optim {

Rprop::Rprop(std::vector<torch::Tensor> parameters, const RpropOptions& options)
    : LocalOptimizer(std::move(parameters), options) {
  TORCH_CHECK(0 < options.etaminus() && options.etaminus() < 1 && 1 < options.etaplus(),
              "Invalid eta values: ", options.etaminus(), ", ", options.etaplus());
}

RpropParamState Rprop::begin(const at::Tensor& parameter, const RpropOptions& options) const {
  at::Tensor size = torch::empty_like(parameter, at::MemoryFormat::Preserve);
  real_parts(size).fill_(options.lr());
  return RpropParamState()
      .prev(torch::zeros_like(parameter, at::MemoryFormat::Preserve))
      .step_size(std::move(size));
}

void Rprop::update(at::Tensor& parameter, const at::Tensor& gradient, const RpropOptions& options,
                   RpropParamState& state) const {
  require_dense(gradient, "Rprop");
  ++state.step();
  at::Tensor g = real_parts(options.maximize() ? -gradient : gradient);
  at::Tensor prev = real_parts(state.prev()), size = real_parts(state.step_size());
  const at::Tensor agreement = g * prev;
  const at::Tensor turned = agreement < 0;
  size.mul_(at::ones_like(size)
                .masked_fill_(agreement > 0, options.etaplus())
                .masked_fill_(turned, options.etaminus()));
  size.clamp_(options.step_size_min(), options.step_size_max());
  g = g.masked_fill(turned, 0);
  real_parts(parameter).addcmul_(g.sign(), size, -1);
  prev.copy_(g);
}

}  // namespace weft::dist_optim
