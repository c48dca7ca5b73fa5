// Rprop: each element has its own step size, which grows while the sign of its gradient stays, and shrinks
// when the sign changes. The size of the gradient has no effect. (Riedmiller and Braun 1993, in the variant
// that skips an element's step after a change of sign; torch.optim.Rprop, which LibTorch's C++ API lacks.)
// Use it with full batches, not with mini-batches.
//
//   where g · g' > 0: s *= etaplus;  where g · g' < 0: s *= etaminus, g = 0;  s is kept within its bounds
//   p -= s · sign(g), and g is the next step's g'
// `lr` is the first s of a parameter, and has no effect from its second step on. With `maximize`, the
// gradient is negated first. A complex parameter's two parts step as independent reals.
//
// Thread-safety and errors are those of LocalOptimizer. A sparse gradient is refused.
#pragma once

#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

// The defaults are those of torch.optim.Rprop.
struct WEFT_EXPORT RpropOptions : LocalOptions<RpropOptions> {
  explicit RpropOptions(double rate = 1e-2) : lr_(rate) {}
  TORCH_ARG(double, lr);  // the first step size
  TORCH_ARG(double, etaminus) = 0.5;
  TORCH_ARG(double, etaplus) = 1.2;
  TORCH_ARG(double, step_size_min) = 1e-6;
  TORCH_ARG(double, step_size_max) = 50;
  TORCH_ARG(bool, maximize) = false;

 public:
  // The values by name.
  Fields fields() {
    return {{"lr", &lr_},
            {"etaminus", &etaminus_},
            {"etaplus", &etaplus_},
            {"step_size_min", &step_size_min_},
            {"step_size_max", &step_size_max_},
            {"maximize", &maximize_}};
  }
};

// The state of one parameter. The tensors have its shape.
struct WEFT_EXPORT RpropParamState : LocalParamState<RpropParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, prev);       // g'
  TORCH_ARG(torch::Tensor, step_size);  // s

 public:
  // The values by name.
  Fields fields() { return {{"step", &step_}, {"prev", &prev_}, {"step_size", &step_size_}}; }
};

class WEFT_EXPORT Rprop final : public LocalOptimizer<RpropOptions, RpropParamState> {
 public:
  explicit Rprop(std::vector<torch::Tensor> parameters, const RpropOptions& options = RpropOptions());

 private:
  RpropParamState begin(const at::Tensor& parameter, const RpropOptions& options) const override;
  void update(at::Tensor& parameter, const at::Tensor& gradient, const RpropOptions& options,
              RpropParamState& state) const override;
};

}  // namespace weft::dist_optim
