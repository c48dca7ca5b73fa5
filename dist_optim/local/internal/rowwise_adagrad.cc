#include <weft/dist_optim/local/internal/rowwise_adagrad.h>

#include <weft/dist_optim/local/internal/row_update.h>

namespace weft::dist_optim {
namespace {

// As many rows as `values` has, each wide enough to multiply them.
torch::Tensor as_column(const torch::Tensor& of_rows, const torch::Tensor& values) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(values.dim()), 1);
  if (!shape.empty()) shape[0] = values.size(0);
  return of_rows.reshape(shape);
}

torch::Tensor mean_square(const torch::Tensor& values) {
  const torch::Tensor squares = values * values;
  return squares.dim() < 2 ? squares : squares.flatten(1).mean(1);
}

}  // namespace

RowwiseAdagrad::RowwiseAdagrad(std::vector<torch::Tensor> parameters, const RowwiseAdagradOptions& options)
    : LocalOptimizer(std::move(parameters), options) {
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.initial_accumulator_value() >= 0,
              "Invalid initial_accumulator_value value: ", options.initial_accumulator_value());
}

RowwiseAdagradParamState RowwiseAdagrad::begin(const at::Tensor& parameter,
                                               const RowwiseAdagradOptions& options) const {
  const std::int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
  return RowwiseAdagradParamState().sum(
      torch::full({rows}, options.initial_accumulator_value(), parameter.options()));
}

void RowwiseAdagrad::update(at::Tensor& parameter, const at::Tensor& gradient,
                            const RowwiseAdagradOptions& options, RowwiseAdagradParamState& state) const {
  torch::Tensor& sum = state.sum();
  const auto change = [&](const torch::Tensor& of_rows, const torch::Tensor& g) {
    return adagrad_rate(as_column(of_rows, g), options.lr(), options.eps()) * g;
  };
  if (!gradient.is_sparse()) {
    sum.add_(mean_square(gradient).reshape(sum.sizes()));
    parameter.sub_(change(sum, gradient));
    return;
  }
  // The update is not linear: an index that occurs twice counts once, with the sum.
  const torch::Tensor once = gradient.coalesce();
  TORCH_CHECK(once.sparse_dim() == 1, "RowwiseAdagrad: the gradient has ", once.sparse_dim(),
              " sparse dimensions, expected 1 (its rows)");
  const torch::Tensor rows = once.indices()[0];
  if (rows.numel() == 0) return;
  sum.index_add_(0, rows, mean_square(once.values()));
  parameter.index_add_(0, rows, change(sum.index_select(0, rows), once.values()), -1);
}

}  // namespace weft::dist_optim
