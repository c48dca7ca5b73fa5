// SparseAdam: Adam for embeddings: only the rows that have a gradient are touched (torch.optim.SparseAdam,
// which LibTorch's C++ API lacks; its Adam refuses sparse gradients).
//
// A row's moments decay in the steps in which it has a gradient, and only then; the bias correction counts
// the parameter's steps, not the row's. With m, v the row's moments and t the step (Kingma and Ba 2015, in
// the order of their section 2's closing remark):
//   m += (1 - beta1) (g - m);  v += (1 - beta2) (g² - v);
//   p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) · m / (sqrt(v) + eps)
// A dense gradient is one of every element, so that a module may mix embeddings and dense layers. A gradient
// without any entry changes no row, but its step counts.
//
// Thread-safety: as all of LibTorch's optimizers: none. Errors: c10::Error, as theirs.
#pragma once

#include <weft/rpc/core/export.h>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace weft::dist_optim {

struct WEFT_EXPORT SparseAdamOptions : torch::optim::OptimizerCloneableOptions<SparseAdamOptions> {
  explicit SparseAdamOptions(double rate = 1e-3) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, beta1) = 0.9;
  TORCH_ARG(double, beta2) = 0.999;
  TORCH_ARG(double, eps) = 1e-8;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }
};

struct WEFT_EXPORT SparseAdamParamState : torch::optim::OptimizerCloneableParamState<SparseAdamParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, exp_avg);
  TORCH_ARG(torch::Tensor, exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class WEFT_EXPORT SparseAdam final : public torch::optim::Optimizer {
 public:
  explicit SparseAdam(std::vector<torch::Tensor> parameters, SparseAdamOptions options = SparseAdamOptions());
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace weft::dist_optim
