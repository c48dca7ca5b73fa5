#include <weft/parallel/pipeline/deferred_batch_norm.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <ostream>

namespace weft::pipeline {

DeferredBatchNormImpl::DeferredBatchNormImpl(const torch::nn::BatchNormOptions& options)
    : BatchNormVariant(options) {
  sums_ = register_buffer("minibatch", at::zeros({2 * options.num_features() + 1}));
}

void DeferredBatchNormImpl::reset() {
  BatchNormVariant::reset();
  sums_ = register_buffer("minibatch", at::zeros({2 * options.num_features() + 1}));
  has_microbatches_ = false;
}

at::Tensor DeferredBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool uses_batch = is_training() || !running_mean.defined();
  const at::Tensor output = torch::nn::functional::detail::batch_norm(
      input, uses_batch ? at::Tensor() : running_mean, uses_batch ? at::Tensor() : running_var, weight, bias,
      uses_batch, /*momentum=*/0, options.eps());
  if (is_training() && running_mean.defined()) add_microbatch(input);
  return output;
}

// Means and squared deviations add up without cancellation (Chan, Golub and LeVeque 1979).
void DeferredBatchNormImpl::add_microbatch(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  // Module::to() may have given sums_ a type in which counts are not exact.
  if (sums_.scalar_type() != at::kDouble) sums_.set_data(sums_.to(at::kFloat));
  const std::int64_t channels = options.num_features();
  const auto [variance, mean] =
      at::var_mean(input.detach().to(sums_.scalar_type()), training::reduced_dims(input), 0);
  const double count = static_cast<double>(input.numel() / channels);
  const at::Tensor before = sums_.narrow(0, 0, 1).clone(), total = before + count;
  const at::Tensor means = sums_.narrow(0, 1, channels), squares = sums_.narrow(0, 1 + channels, channels);
  const at::Tensor difference = mean - means;
  squares.add_(variance * count + difference.square() * (before * count / total));
  means.add_(difference * (count / total));
  sums_.narrow(0, 0, 1).copy_(total);
  has_microbatches_ = true;
}

void DeferredBatchNormImpl::end_minibatch() {
  if (!has_microbatches_) return;
  const at::NoGradGuard no_grad;
  const std::int64_t channels = options.num_features();
  const at::Tensor count = sums_.narrow(0, 0, 1);
  num_batches_tracked.add_(1);
  const double momentum = options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
  running_mean.mul_(1 - momentum).add_(sums_.narrow(0, 1, channels), momentum);
  running_var.mul_(1 - momentum)
      .add_(sums_.narrow(0, 1 + channels, channels) / (count - 1).clamp_min(1), momentum);
  drop_minibatch();
}

void DeferredBatchNormImpl::drop_minibatch() {
  if (!std::exchange(has_microbatches_, false)) return;
  const at::NoGradGuard no_grad;
  sums_.zero_();
}

void DeferredBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::pipeline::DeferredBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ")";
}

std::vector<std::string> convert_deferred_batch_norm(torch::nn::Module& module) {
  return training::replace_batch_norms(
      module, "convert_deferred_batch_norm", "DeferredBatchNorm", [](const auto& norm) {
        return norm.options.track_running_stats() ? std::make_shared<DeferredBatchNormImpl>(norm.options)
                                                  : nullptr;
      });
}

void end_minibatch(const StageGraph& graph, bool completed) {
  for (int stage = 0; stage < graph.size(); ++stage) {
    if (!graph.is_here(stage)) continue;
    for (const auto& module : graph[stage].module->modules())
      if (auto* const norm = dynamic_cast<DeferredBatchNormImpl*>(module.get()))
        completed ? norm->end_minibatch() : norm->drop_minibatch();
  }
}

}  // namespace weft::pipeline
