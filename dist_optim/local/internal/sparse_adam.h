// SparseAdam: Adam for embeddings, which changes only the rows that have a gradient (torch.optim.SparseAdam,
// which LibTorch's C++ API lacks; LibTorch's Adam refuses sparse gradients).
//
// A row's moments decay only in the steps in which it has a gradient. The bias correction counts the
// parameter's steps, not the row's. With m, v the row's moments and t the step (Kingma and Ba 2015, in the
// order of the last remark of their section 2; row_update.h):
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²;
//   p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) · m / (sqrt(v) + eps)
// A dense gradient is a gradient of every element, so a module may mix embeddings and dense layers. A
// gradient without entries changes no row, but t increases.
//
// Thread-safety and errors are those of LocalOptimizer.
#pragma once

#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

// The defaults are those of torch.optim.SparseAdam.
struct WEFT_EXPORT SparseAdamOptions : LocalOptions<SparseAdamOptions> {
  explicit SparseAdamOptions(double rate = 1e-3) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta1) = 0.9;
  TORCH_ARG(double, beta2) = 0.999;
  TORCH_ARG(double, eps) = 1e-8;

 public:
  // The values by name.
  Fields fields() { return {{"lr", &lr_}, {"beta1", &beta1_}, {"beta2", &beta2_}, {"eps", &eps_}}; }
};

// The state of one parameter. The tensors have its shape.
struct WEFT_EXPORT SparseAdamParamState : LocalParamState<SparseAdamParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  // The values by name.
  Fields fields() { return {{"step", &step_}, {"exp_avg", &exp_avg_}, {"exp_avg_sq", &exp_avg_sq_}}; }
};

class WEFT_EXPORT SparseAdam final : public LocalOptimizer<SparseAdamOptions, SparseAdamParamState> {
 public:
  explicit SparseAdam(std::vector<torch::Tensor> parameters,
                      const SparseAdamOptions& options = SparseAdamOptions());

 private:
  void update(at::Tensor& parameter, const at::Tensor& gradient, const SparseAdamOptions& options,
              SparseAdamParamState& state) const override;
};

}  // namespace weft::dist_optim
