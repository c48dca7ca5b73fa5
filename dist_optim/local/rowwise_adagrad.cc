#include <weft/dist_optim/local/rowwise_adagrad.h>

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

namespace weft::dist_optim {
namespace {

// As many rows as `values` has, each as wide as it needs to multiply them.
torch::Tensor beside(const torch::Tensor& of_rows, const torch::Tensor& values) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(values.dim()), 1);
  if (!shape.empty()) shape[0] = values.size(0);
  return of_rows.reshape(shape);
}

torch::Tensor mean_square(const torch::Tensor& values) {
  const torch::Tensor squares = values * values;
  return squares.dim() < 2 ? squares : squares.flatten(1).mean(1);
}

}  // namespace

void RowwiseAdagradOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, initial_accumulator_value);
}

void RowwiseAdagradOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(initial_accumulator_value);
}

void RowwiseAdagradParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, sum);
}

void RowwiseAdagradParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(sum);
}

RowwiseAdagrad::RowwiseAdagrad(std::vector<torch::Tensor> parameters, RowwiseAdagradOptions options)
    : Optimizer(std::move(parameters), std::make_unique<RowwiseAdagradOptions>(options)) {
  TORCH_CHECK(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.initial_accumulator_value() >= 0,
              "Invalid initial_accumulator_value value: ", options.initial_accumulator_value());
}

torch::Tensor RowwiseAdagrad::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    at::AutoGradMode enable(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const RowwiseAdagradOptions&>(group.options());
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& kept = state_[parameter.unsafeGetTensorImpl()];
      if (kept == nullptr) {
        auto fresh = std::make_unique<RowwiseAdagradParamState>();
        const std::int64_t rows = parameter.dim() == 0 ? 1 : parameter.size(0);
        fresh->sum(torch::full({rows}, options.initial_accumulator_value(), parameter.options()));
        kept = std::move(fresh);
      }
      torch::Tensor& sum = static_cast<RowwiseAdagradParamState&>(*kept).sum();
      const auto change = [&](const torch::Tensor& of_rows, const torch::Tensor& g) {
        return g / (beside(of_rows, g).sqrt() + options.eps()) * -options.lr();
      };
      if (!parameter.grad().is_sparse()) {
        sum.add_(mean_square(parameter.grad()).reshape(sum.sizes()));
        parameter.add_(change(sum, parameter.grad()));
        continue;
      }
      // The update is not linear: an index that is there twice counts once, with the sum.
      const torch::Tensor gradient = parameter.grad().coalesce();
      TORCH_CHECK(gradient.sparse_dim() == 1, "RowwiseAdagrad takes gradients that are sparse in their rows");
      const torch::Tensor rows = gradient.indices()[0];
      if (rows.numel() == 0) continue;
      sum.index_add_(0, rows, mean_square(gradient.values()));
      parameter.index_add_(0, rows, change(sum.index_select(0, rows), gradient.values()));
    }
  }
  return loss;
}

void RowwiseAdagrad::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<RowwiseAdagradParamState, RowwiseAdagradOptions>(archive, *this);
}

void RowwiseAdagrad::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<RowwiseAdagradParamState, RowwiseAdagradOptions>(archive, *this);
}

}  // namespace weft::dist_optim
