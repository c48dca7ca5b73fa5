#include <weft/dist_optim/local/sparse_adam.h>

#include <cmath>

#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

namespace weft::dist_optim {

void SparseAdamOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, beta1);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, beta2);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
}

void SparseAdamOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(beta1);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(beta2);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
}

void SparseAdamParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, exp_avg_sq);
}

void SparseAdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

SparseAdam::SparseAdam(std::vector<torch::Tensor> parameters, SparseAdamOptions options)
    : Optimizer(std::move(parameters), std::make_unique<SparseAdamOptions>(options)) {
  TORCH_CHECK(options.lr() >= 0, "Invalid learning rate: ", options.lr());
  TORCH_CHECK(options.eps() >= 0, "Invalid epsilon value: ", options.eps());
  TORCH_CHECK(options.beta1() >= 0 && options.beta1() < 1, "Invalid beta1: ", options.beta1());
  TORCH_CHECK(options.beta2() >= 0 && options.beta2() < 1, "Invalid beta2: ", options.beta2());
}

torch::Tensor SparseAdam::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure != nullptr) {
    at::AutoGradMode enable(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const SparseAdamOptions&>(group.options());
    for (auto& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& kept = state_[parameter.unsafeGetTensorImpl()];
      if (kept == nullptr) {
        auto fresh = std::make_unique<SparseAdamParamState>();
        fresh->exp_avg(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
        fresh->exp_avg_sq(torch::zeros_like(parameter, at::MemoryFormat::Preserve));
        kept = std::move(fresh);
      }
      auto& state = static_cast<SparseAdamParamState&>(*kept);
      state.step(state.step() + 1);
      const auto t = static_cast<double>(state.step());
      const double size =
          options.lr() * std::sqrt(1 - std::pow(options.beta2(), t)) / (1 - std::pow(options.beta1(), t));

      const auto update = [&](torch::Tensor& m, torch::Tensor& v, const torch::Tensor& g) {
        m.add_(g - m, 1 - options.beta1());
        v.add_(g * g - v, 1 - options.beta2());
        return m / (v.sqrt() + options.eps()) * -size;
      };
      if (!parameter.grad().is_sparse()) {
        parameter.add_(update(state.exp_avg(), state.exp_avg_sq(), parameter.grad()));
        continue;
      }
      // The update is not linear: an index that is there twice counts once, with the sum.
      const torch::Tensor gradient = parameter.grad().coalesce();
      TORCH_CHECK(gradient.sparse_dim() == 1, "SparseAdam takes gradients that are sparse in their rows");
      const torch::Tensor rows = gradient.indices()[0];
      if (rows.numel() == 0) continue;
      torch::Tensor m = state.exp_avg().index_select(0, rows), v = state.exp_avg_sq().index_select(0, rows);
      const torch::Tensor change = update(m, v, gradient.values());
      state.exp_avg().index_copy_(0, rows, m);
      state.exp_avg_sq().index_copy_(0, rows, v);
      parameter.index_add_(0, rows, change);
    }
  }
  return loss;
}

void SparseAdam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<SparseAdamParamState, SparseAdamOptions>(archive, *this);
}

void SparseAdam::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<SparseAdamParamState, SparseAdamOptions>(archive, *this);
}

}  // namespace weft::dist_optim
