// With z the logits, m their maximum over all ranks, s the sum of exp(z - m), t the target's z - m, and q the
// sum of z - m over the vocabulary V:
//   -log p(target) = log s - t,      mean of -log p over V = log s - q / V.
// The gradient of the loss (1 - e) (log s - t) + e (log s - q / V) is p - (1 - e) [target] - e / V.
#include <weft/parallel/tensor_parallel/cross_entropy.h>

#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/parallel/tensor_parallel/internal/vocabulary_part.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

namespace weft::tensor_parallel {
namespace {

using collectives::Group;
using collectives::ReduceOp;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* operation = "vocabulary_parallel_cross_entropy";

// On a device the results are ordered by the stream.
void finish(const Group& group, const at::Tensor& tensor, rpc::Future<void> future) {
  if (tensor.is_cpu() || future.ready()) group.wait(std::move(future));
}

struct VocabularyLosses : torch::autograd::Function<VocabularyLosses> {
  // logits: [n, columns]; targets: [n]; returns [n].
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            const Group& group, const VocabularyPart& part,
                            const CrossEntropyOptions& options) {
    const at::Tensor wide = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor ignored = targets.eq(options.ignore_index);
    const at::Tensor outside = part.outside(targets).logical_and(ignored.logical_not());
    // The last element is 1 if a rank has a target outside of the vocabulary. On the CPU, all
    // ranks then throw.
    const at::Tensor maxima =
        at::cat({wide.detach().amax(1), outside.any().to(wide.scalar_type()).reshape({1})});
    finish(group, maxima, group.inlined().all_reduce(maxima, ReduceOp::max));
    if (maxima.is_cpu() && maxima[-1].item<double>() > 0)
      refuse_outside(group, part, targets.masked_fill(ignored, 0), std::string(operation) + ": targets");

    const auto [columns, here] = part.local_rows(targets);
    at::Tensor shifted = wide - maxima.narrow(0, 0, targets.size(0)).unsqueeze(1);
    const at::Tensor target =
        shifted.gather(1, columns.unsqueeze(1)).squeeze(1).masked_fill(here.logical_not(), 0);
    const at::Tensor total = options.label_smoothing > 0 ? shifted.sum(1) : at::zeros_like(target);
    at::Tensor probabilities = shifted.exp_();
    const at::Tensor sums = at::stack({probabilities.sum(1), target, total});
    finish(group, sums, group.inlined().all_reduce(sums));
    probabilities.div_(sums[0].unsqueeze(1));
    const at::Tensor log_sum = sums[0].log();
    const double smoothing = options.label_smoothing, mean = 1 / static_cast<double>(part.vocabulary);
    at::Tensor losses = (log_sum - sums[1]) * (1 - smoothing) + (log_sum - sums[2] * mean) * smoothing;
    if (!losses.is_cpu()) losses = losses.masked_fill(outside, std::numeric_limits<double>::quiet_NaN());

    context->save_for_backward({probabilities, columns, here, ignored});
    context->saved_data["smoothing"] = smoothing;
    context->saved_data["mean"] = mean;
    context->saved_data["dtype"] = logits.scalar_type();
    return losses.masked_fill(ignored, 0);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_recorded_backward(operation);
    const auto saved = context->get_saved_variables();
    const at::Tensor &probabilities = saved[0], &columns = saved[1], &here = saved[2], &ignored = saved[3];
    const double smoothing = context->saved_data["smoothing"].toDouble();
    at::Tensor of_logits = probabilities - smoothing * context->saved_data["mean"].toDouble();
    of_logits.scatter_add_(1, columns.unsqueeze(1),
                           here.to(of_logits.scalar_type()).mul(smoothing - 1).unsqueeze(1));
    of_logits.mul_(gradients[0].to(of_logits.scalar_type()).masked_fill(ignored, 0).unsqueeze(1));
    return {of_logits.to(context->saved_data["dtype"].toScalarType()), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor vocabulary_parallel_cross_entropy(const Group& group, const at::Tensor& logits,
                                             const at::Tensor& targets, std::int64_t vocabulary,
                                             const CrossEntropyOptions& options) {
  const auto part = VocabularyPart::of(group, vocabulary, operation);
  if (options.label_smoothing < 0 || options.label_smoothing > 1)
    refuse(operation, "label_smoothing is " + std::to_string(options.label_smoothing) +
                          ", expected a value from 0 to 1");
  if (logits.dim() < 1 || logits.size(-1) != part.rows)
    refuse(operation, "the logits have " + (logits.dim() < 1 ? "no" : std::to_string(logits.size(-1))) +
                          " columns, expected " + std::to_string(part.rows) + ", those of this rank of " +
                          std::to_string(vocabulary));
  if (targets.scalar_type() != at::kLong || targets.sizes() != logits.sizes().slice(0, logits.dim() - 1))
    refuse(operation, c10::str("the targets are ", targets.scalar_type(), " ", targets.sizes(), ", expected ",
                               at::kLong, " ", logits.sizes().slice(0, logits.dim() - 1),
                               ", the shape of the logits without their last dimension"));
  const at::Tensor losses =
      VocabularyLosses::apply(logits.reshape({-1, part.rows}), targets.reshape(-1), group, part, options);
  if (options.reduction == at::Reduction::None) return losses.view(targets.sizes());
  if (options.reduction == at::Reduction::Sum) return losses.sum();
  return losses.sum() / targets.ne(options.ignore_index).sum();
}

}  // namespace weft::tensor_parallel
