// Adadelta: sets step sizes by the ratio of two running averages, of past steps and of past gradients (Zeiler
// 2012; torch.optim.Adadelta, which LibTorch's C++ API lacks).
//
//   g += weight_decay · p;  v = rho v + (1 - rho) g²;  d = sqrt(u + eps) / sqrt(v + eps) · g
//   u = rho u + (1 - rho) d²;  p -= lr · d
// With `maximize`, the gradient is negated first. A complex parameter's two parts step as independent reals.
//
// Thread-safety and errors are those of LocalOptimizer. A sparse gradient is refused.
#pragma once

#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

// The defaults are those of torch.optim.Adadelta.
struct WEFT_EXPORT AdadeltaOptions : LocalOptions<AdadeltaOptions> {
  explicit AdadeltaOptions(double rate = 1.0) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, maximize) = false;

 public:
  // The values by name.
  Fields fields() {
    return {{"lr", &lr_},
            {"rho", &rho_},
            {"eps", &eps_},
            {"weight_decay", &weight_decay_},
            {"maximize", &maximize_}};
  }
};

// The state of one parameter. The tensors have its shape.
struct WEFT_EXPORT AdadeltaParamState : LocalParamState<AdadeltaParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, square_avg);  // v
  TORCH_ARG(torch::Tensor, acc_delta);   // u

 public:
  // The values by name.
  Fields fields() { return {{"step", &step_}, {"square_avg", &square_avg_}, {"acc_delta", &acc_delta_}}; }
};

class WEFT_EXPORT Adadelta final : public LocalOptimizer<AdadeltaOptions, AdadeltaParamState> {
 public:
  explicit Adadelta(std::vector<torch::Tensor> parameters,
                    const AdadeltaOptions& options = AdadeltaOptions());

 private:
  void update(at::Tensor& parameter, const at::Tensor& gradient, const AdadeltaOptions& options,
              AdadeltaParamState& state) const override;
};

}  // namespace weft::dist_optim
