// Adamax: Adam with the infinity norm of the past gradients instead of their second moment (Kingma and Ba
// 2015, section 7.1; torch.optim.Adamax, which LibTorch's C++ API lacks).
//
//   g += weight_decay · p;  m += (1 - beta1) (g - m);  n = max(beta2 n, |g| + eps)
//   p -= lr / (1 - beta1^t) · m / n, with t the step
// With `maximize`, the gradient is negated first. A complex parameter's two parts step as independent reals.
//
// Thread-safety and errors are those of LocalOptimizer. A sparse gradient is refused.
#pragma once

#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

// The defaults are those of torch.optim.Adamax.
struct WEFT_EXPORT AdamaxOptions : LocalOptions<AdamaxOptions> {
  explicit AdamaxOptions(double rate = 2e-3) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta1) = 0.9;
  TORCH_ARG(double, beta2) = 0.999;
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, maximize) = false;

 public:
  // The values by name.
  Fields fields() {
    return {{"lr", &lr_},
            {"beta1", &beta1_},
            {"beta2", &beta2_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"maximize", &maximize_}};
  }
};

// The state of one parameter. The tensors have its shape.
struct WEFT_EXPORT AdamaxParamState : LocalParamState<AdamaxParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);  // m
  TORCH_ARG(torch::Tensor, exp_inf);  // n

 public:
  // The values by name.
  Fields fields() { return {{"step", &step_}, {"exp_avg", &exp_avg_}, {"exp_inf", &exp_inf_}}; }
};

class WEFT_EXPORT Adamax final : public LocalOptimizer<AdamaxOptions, AdamaxParamState> {
 public:
  explicit Adamax(std::vector<torch::Tensor> parameters, const AdamaxOptions& options = AdamaxOptions());

 private:
  void update(at::Tensor& parameter, const at::Tensor& gradient, const AdamaxOptions& options,
              AdamaxParamState& state) const override;
};

}  // namespace weft::dist_optim
