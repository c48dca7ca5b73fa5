// RowwiseAdagrad: Adagrad with one accumulator a row rather than an element, and only the rows touched that
// have a gradient: the usual optimizer of large embedding tables (Duchi et al. 2011; per row as in DLRM,
// Naumov et al. 2019, and FBGEMM's table-batched embeddings).
//
//   s += mean over the row of g²;  p -= lr · g / (sqrt(s) + eps)
// A row is what the first dimension counts; of a parameter with fewer than two dimensions every element is
// one. A dense gradient is one of every row.
//
// Thread-safety: as all of LibTorch's optimizers: none. Errors: c10::Error, as theirs.
#pragma once

#include <weft/rpc/core/export.h>

#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace weft::dist_optim {

struct WEFT_EXPORT RowwiseAdagradOptions : torch::optim::OptimizerCloneableOptions<RowwiseAdagradOptions> {
  explicit RowwiseAdagradOptions(double rate = 1e-2) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, eps) = 1e-10;
  TORCH_ARG(double, initial_accumulator_value) = 0;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(const double rate) override { lr(rate); }
};

struct WEFT_EXPORT RowwiseAdagradParamState
    : torch::optim::OptimizerCloneableParamState<RowwiseAdagradParamState> {
  TORCH_ARG(torch::Tensor, sum);  // one element a row

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class WEFT_EXPORT RowwiseAdagrad final : public torch::optim::Optimizer {
 public:
  explicit RowwiseAdagrad(std::vector<torch::Tensor> parameters,
                          RowwiseAdagradOptions options = RowwiseAdagradOptions());
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace weft::dist_optim
