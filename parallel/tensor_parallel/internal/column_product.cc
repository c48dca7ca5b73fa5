// Backward computes G W, starts its reduction over the ranks, and computes G^T X meanwhile. If the sequence
// is split, X is gathered again while G W is computed, and the reduction is a reduce-scatter.
#include <weft/parallel/tensor_parallel/internal/column_product.h>

#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/internal/agreement.h>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace weft::tensor_parallel {
namespace {

using collectives::Group;
using InFlight = OverlappedGroup::InFlight;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

struct ColumnProduct : torch::autograd::Function<ColumnProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<OverlappedGroup>& ranks,
                            std::optional<std::int64_t> sequence_dim) {
    context->save_for_backward({input, weight});
    context->saved_data["has_bias"] = bias.has_value();  // if false: not an input of the node
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(ranks, sequence_dim));
    return at::linear(sequence_dim ? gather_sequence(ranks->group(), input, *sequence_dim) : input, weight,
                      bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_recorded_backward("ColumnParallelLinear");
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &gradient = gradients[0];
    const auto capsule = context->saved_data["ranks"].toCapsule();
    const auto& ranks = static_cast<const Held&>(*capsule).ranks;
    const auto dim = static_cast<const Held&>(*capsule).dim;
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const c10::Device device = input.device();
    const bool wants_input = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);

    at::Tensor whole = input;
    std::optional<InFlight> gather;
    if (dim && wants_weight) {
      const at::Tensor part = input.movedim(*dim, 0).contiguous();
      auto sizes = part.sizes().vec();
      sizes[0] *= ranks->group().size();
      const at::Tensor all = at::empty(sizes, part.options());
      gather = ranks->start(device, [&](const Group& group) { return group.all_gather(all, part); });
      whole = all.movedim(0, *dim);
    }
    at::Tensor of_input;
    std::optional<InFlight> reduction;
    if (wants_input) {
      of_input = gradient.matmul(weight);
      if (dim) {
        const at::Tensor all = of_input.movedim(*dim, 0).contiguous();
        auto sizes = all.sizes().vec();
        sizes[0] /= ranks->group().size();
        const at::Tensor part = at::empty(sizes, all.options());
        reduction = ranks->start(device, [&](const Group& group) { return group.reduce_scatter(part, all); });
        of_input = part.movedim(0, *dim);
      } else {
        reduction = ranks->start(device, [&](const Group& group) { return group.all_reduce(of_input); });
      }
    }
    at::Tensor of_weight, of_bias;
    if (gather) gather->finish();
    if (wants_weight) of_weight = rows_of(gradient).t().mm(rows_of(whole));
    if (has_bias && context->needs_input_grad(2)) of_bias = rows_of(gradient).sum(0);
    if (reduction) reduction->finish();
    return {of_input, of_weight, of_bias, {}, {}};
  }

 private:
  struct Held : torch::CustomClassHolder {
    Held(std::shared_ptr<OverlappedGroup> r, std::optional<std::int64_t> d) : ranks(std::move(r)), dim(d) {}
    const std::shared_ptr<OverlappedGroup> ranks;
    const std::optional<std::int64_t> dim;
  };
};

// As LibTorch's own linear layer does under autocast. Backward then finds the types that forward has used.
at::Tensor in_compute_type(const at::Tensor& tensor) {
  const auto device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device)
             ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device)
             : tensor;
}

}  // namespace

at::Tensor column_product(const std::shared_ptr<OverlappedGroup>& ranks, const at::Tensor& input,
                          const at::Tensor& weight, const at::Tensor& bias,
                          std::optional<std::int64_t> sequence_dim) {
  if (input.size(-1) != weight.size(1))
    refuse("ColumnParallelLinear", "the input has " + std::to_string(input.size(-1)) +
                                       " features, expected " + std::to_string(weight.size(1)) +
                                       ", the columns of the weight");
  // LibTorch's own product, whose weight gradient a pipeline may defer.
  if (ranks->group().size() == 1)
    return at::linear(input, weight, bias.defined() ? std::optional(bias) : std::nullopt);
  if (sequence_dim && *sequence_dim < 0) sequence_dim = *sequence_dim + input.dim();
  return ColumnProduct::apply(in_compute_type(input), in_compute_type(weight),
                              bias.defined() ? std::optional(in_compute_type(bias)) : std::nullopt, ranks,
                              sequence_dim);
}

}  // namespace weft::tensor_parallel
