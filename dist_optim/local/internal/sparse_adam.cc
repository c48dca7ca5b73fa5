#include <weft/dist_optim/local/internal/sparse_adam.h>

#include <weft/dist_optim/local/internal/row_update.h>

namespace weft::dist_optim {

SparseAdam::SparseAdam(std::vector<torch::Tensor> parameters, const SparseAdamOptions& options)
    : LocalOptimizer(std::move(parameters), options) {
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.beta1() >= 0 && options.beta1() < 1, "Invalid beta1: ", options.beta1());
  TORCH_CHECK(options.beta2() >= 0 && options.beta2() < 1, "Invalid beta2: ", options.beta2());
}

void SparseAdam::update(at::Tensor& parameter, const at::Tensor& gradient, const SparseAdamOptions& options,
                        SparseAdamParamState& state) const {
  const AdamStep<double> step(options.lr(), options.beta1(), options.beta2(), options.eps(),
                              static_cast<double>(++state.step()), AdamStep<double>::Eps::to_root);
  if (!gradient.is_sparse()) {
    parameter.sub_(adam_change(state.exp_avg(), state.exp_avg_sq(), gradient, step));
    return;
  }
  // The update is not linear: an index that occurs twice counts once, with the sum.
  const torch::Tensor sum = gradient.coalesce();
  TORCH_CHECK(sum.sparse_dim() == 1, "SparseAdam: the gradient has ", sum.sparse_dim(),
              " sparse dimensions, expected 1 (its rows)");
  const torch::Tensor rows = sum.indices()[0];
  if (rows.numel() == 0) return;
  torch::Tensor m = state.exp_avg().index_select(0, rows), v = state.exp_avg_sq().index_select(0, rows);
  const torch::Tensor by = adam_change(m, v, sum.values(), step);
  state.exp_avg().index_copy_(0, rows, m);
  state.exp_avg_sq().index_copy_(0, rows, v);
  parameter.index_add_(0, rows, by, -1);
}

}  // namespace weft::dist_optim
