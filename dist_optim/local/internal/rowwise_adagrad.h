// RowwiseAdagrad: Adagrad with one accumulator for each row instead of each element. It changes only the rows
// that have a gradient, and is the usual optimizer of large embedding tables (Duchi et al. 2011; per row as
// in DLRM, Naumov et al. 2019, and FBGEMM's table-batched embeddings).
//
//   s += mean over the row of g²;  p -= lr · g / (sqrt(s) + eps)
// A row is an index of the first dimension; in a parameter with fewer than two dimensions every element is a
// row. A dense gradient is a gradient of every row.
//
// Thread-safety and errors are those of LocalOptimizer.
#pragma once

#include <weft/dist_optim/local/internal/local_optimizer.h>

namespace weft::dist_optim {

// The defaults are those of torch.optim.Adagrad, without decay.
struct WEFT_EXPORT RowwiseAdagradOptions : LocalOptions<RowwiseAdagradOptions> {
  explicit RowwiseAdagradOptions(double rate = 1e-2) : lr_(rate) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, eps) = 1e-10;
  TORCH_ARG(double, initial_accumulator_value) = 0;

 public:
  // The values by name.
  Fields fields() {
    return {{"lr", &lr_}, {"eps", &eps_}, {"initial_accumulator_value", &initial_accumulator_value_}};
  }
};

// The state of one parameter.
struct WEFT_EXPORT RowwiseAdagradParamState : LocalParamState<RowwiseAdagradParamState> {
  TORCH_ARG(torch::Tensor, sum);  // one element a row

 public:
  // The values by name.
  Fields fields() { return {{"sum", &sum_}}; }
};

class WEFT_EXPORT RowwiseAdagrad final
    : public LocalOptimizer<RowwiseAdagradOptions, RowwiseAdagradParamState> {
 public:
  explicit RowwiseAdagrad(std::vector<torch::Tensor> parameters,
                          const RowwiseAdagradOptions& options = RowwiseAdagradOptions());

 private:
  RowwiseAdagradParamState begin(const at::Tensor& parameter,
                                 const RowwiseAdagradOptions& options) const override;
  void update(at::Tensor& parameter, const at::Tensor& gradient, const RowwiseAdagradOptions& options,
              RowwiseAdagradParamState& state) const override;
};

}  // namespace weft::dist_optim
