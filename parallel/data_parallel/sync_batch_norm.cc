#include <weft/parallel/data_parallel/sync_batch_norm.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ostream>

namespace weft::data_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

// Statistics over all ranks, per channel.
struct Statistics {
  at::Tensor mean, variance;  // the biased one
  double count = 0;
};

// Each rank gives its count, mean and sum of squared deviations, which add up without cancellation (Chan,
// Golub and LeVeque 1979). An undefined input is an empty batch.
Statistics gather(const collectives::Group& group, const at::Tensor& input, std::int64_t channels,
                  const at::TensorOptions& options) {
  at::Tensor own = at::zeros({2 * channels + 1}, options);
  if (input.defined() && input.numel() > 0) {
    const auto dims = training::reduced_dims(input);
    const auto [variance, mean] = at::var_mean(input, dims, 0);
    const auto count = input.numel() / channels;
    own[0] = count;
    own.narrow(0, 1, channels).copy_(mean);
    own.narrow(0, 1 + channels, channels).copy_(variance.mul(count));
  }
  at::Tensor all = at::empty({group.size(), 2 * channels + 1}, options);
  group.wait(group.inlined().all_gather(all, own));
  const at::Tensor counts = all.select(1, 0).unsqueeze(1), means = all.narrow(1, 1, channels);
  Statistics statistics;
  statistics.count = counts.sum().item<double>();
  const double count = std::max(statistics.count, 1.0);
  statistics.mean = (means * counts).sum(0) / count;
  const at::Tensor squares =
      all.narrow(1, 1 + channels, channels) + counts * (means - statistics.mean).square();
  statistics.variance = squares.sum(0) / count;
  return statistics;
}

at::TensorOptions statistics_options(const at::Tensor& input) {
  return input.options()
      .dtype(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
      .requires_grad(false);
}

// Computes the output from input, weight and bias, with the mean and deviation of all ranks.
struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const Statistics& statistics, double eps,
                            const collectives::Group& group) {
    const at::Tensor factor = (statistics.variance + eps).rsqrt();
    context->save_for_backward({input, weight, statistics.mean, factor});
    context->saved_data["count"] = statistics.count;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(group));
    const at::Tensor normalized =
        (input.to(factor.dtype()) - per_channel(statistics.mean, input)) * per_channel(factor, input);
    const at::Tensor output = normalized * per_channel(weight.to(factor.dtype()), input) +
                              per_channel(bias.to(factor.dtype()), input);
    return output.to(input.dtype());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &factor = saved[3];
    const at::Tensor gradient = gradients[0].to(factor.dtype());
    const auto dims = training::reduced_dims(input);
    const at::Tensor normalized =
        (input.to(factor.dtype()) - per_channel(mean, input)) * per_channel(factor, input);
    const at::Tensor sum = gradient.sum(dims), product = (gradient * normalized).sum(dims);
    at::Tensor sums = at::cat({sum, product});
    const auto held = context->saved_data["group"].toCapsule();
    const collectives::Group& group = static_cast<Held&>(*held).group;
    group.wait(group.inlined().all_reduce(sums));
    sums = sums / context->saved_data["count"].toDouble();
    const auto channels = sum.numel();
    at::Tensor of_input = gradient - per_channel(sums.narrow(0, 0, channels), input) -
                          normalized * per_channel(sums.narrow(0, channels, channels), input);
    of_input = (of_input * per_channel(factor * weight.to(factor.dtype()), input)).to(input.dtype());
    return {of_input, product.to(weight.dtype()), sum.to(weight.dtype()), {}, {}, {}};
  }

 private:
  struct Held : torch::CustomClassHolder {
    explicit Held(collectives::Group g) : group(std::move(g)) {}
    collectives::Group group;
  };
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, collectives::Group group)
    : BatchNormVariant(options), group_(std::move(group)) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool uses_batch = is_training() || !running_mean.defined();
  if (!is_training() || group_.size() == 1) {
    double momentum = options.momentum().value_or(0);
    if (is_training() && num_batches_tracked.defined()) {
      num_batches_tracked.add_(1);
      if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
    }
    return at::batch_norm(input, weight, bias, running_mean, running_var, uses_batch, momentum, options.eps(),
                          false);
  }
  Statistics statistics;
  {
    const at::NoGradGuard no_grad;
    const at::TensorOptions wide = statistics_options(input);
    statistics = gather(group_, input.detach().to(wide.dtype()), options.num_features(), wide);
    if (running_mean.defined()) num_batches_tracked.add_(1);
    if (running_mean.defined() && statistics.count > 0) {
      const double momentum =
          options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
      const double unbiased = statistics.count / std::max(statistics.count - 1, 1.0);
      running_mean.mul_(1 - momentum).add_(statistics.mean, momentum);
      running_var.mul_(1 - momentum).add_(statistics.variance, momentum * unbiased);
    }
  }
  const at::TensorOptions wide = statistics_options(input);
  return Normalize::apply(input, weight.defined() ? weight : at::ones({options.num_features()}, wide),
                          bias.defined() ? bias : at::zeros({options.num_features()}, wide), statistics,
                          options.eps(), group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::data_parallel::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << group_.size() << ")";
}

std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module, const collectives::Group& group) {
  return training::replace_batch_norms(
      module, "convert_sync_batch_norm", "SyncBatchNorm",
      [&](const auto& norm) { return std::make_shared<SyncBatchNormImpl>(norm.options, group); });
}

// --- Join ---

SyncBatchNorms::SyncBatchNorms(const torch::nn::Module& module) {
  for (const auto& each : module.modules(false))
    if (auto norm = std::dynamic_pointer_cast<SyncBatchNormImpl>(each)) norms_.emplace_back(std::move(norm));
}

void SyncBatchNorms::shadow_forward(int) {
  for (SyncBatchNorm& norm : norms_) norm->shadow_forward();
}

void SyncBatchNorms::shadow_backward() {
  for (auto norm = norms_.rbegin(); norm != norms_.rend(); ++norm) (*norm)->shadow_backward();
}

void SyncBatchNormImpl::shadow_forward() {
  if (group_.size() == 1) return;
  (void)gather(group_, {}, options.num_features(), statistics_options(weight_or_mean()));
}

void SyncBatchNormImpl::shadow_backward() {
  if (group_.size() == 1) return;
  group_.wait(group_.inlined().all_reduce(
      at::zeros({2 * options.num_features()}, statistics_options(weight_or_mean()))));
}

}  // namespace weft::data_parallel
