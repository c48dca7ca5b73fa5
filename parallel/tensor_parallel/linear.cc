#include <weft/parallel/tensor_parallel/linear.h>

#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/parallel/tensor_parallel/internal/column_product.h>

#include <ATen/Functions.h>

#include <cmath>
#include <sstream>

namespace weft::tensor_parallel {
namespace {

using collectives::Group;

// As torch::nn::Linear draws its weight and its bias.
at::Tensor draw_linear(at::IntArrayRef sizes, std::int64_t in_features,
                       const std::optional<at::Generator>& generator) {
  return draw_uniform(sizes, 1 / std::sqrt(static_cast<double>(in_features)), generator);
}

std::string sequence_text(const std::optional<std::int64_t>& dim) {
  return dim ? ", sequence_dim=" + std::to_string(*dim) : "";
}

}  // namespace

// --- ColumnParallelLinear ---

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const Group& group, std::int64_t in_features,
                                                   std::int64_t out_features, ColumnParallelOptions options)
    : options_(std::move(options)), ranks_(std::make_shared<OverlappedGroup>(group)) {
  std::ostringstream text;
  text << "ColumnParallelLinear(" << in_features << ", " << out_features << ", bias=" << options_.bias
       << ", gather_output=" << options_.gather_output << ", blocks=" << options_.blocks
       << sequence_text(options_.sequence_dim) << ")";
  expect_agreement(group, text.str(), options_.generator);
  if (options_.blocks < 1 || out_features % options_.blocks != 0)
    refuse("ColumnParallelLinear", std::to_string(out_features) + " output features in " +
                                       std::to_string(options_.blocks) +
                                       " blocks, expected a multiple of the number of blocks");
  if (options_.blocks > 1 && options_.gather_output)
    refuse("ColumnParallelLinear", std::to_string(options_.blocks) +
                                       " blocks with gather_output, expected 1 block with gather_output");
  divide(group, out_features / options_.blocks, "ColumnParallelLinear: output features");
  const Split split{group, 0, out_features, options_.blocks};
  weight = register_split("weight", draw_linear({out_features, in_features}, in_features, options_.generator),
                          split);
  if (options_.bias)
    bias = register_split("bias", draw_linear({out_features}, in_features, options_.generator), split);
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor output = column_product(ranks_, input, weight, bias, options_.sequence_dim);
  return options_.gather_output ? gather_from_ranks(ranks_->group(), output) : output;
}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::tensor_parallel::ColumnParallelLinear(in_features=" << weight.size(1)
         << ", out_features=" << splits().front().second.size << ", ranks=" << ranks_->group().size() << ")";
}

// --- RowParallelLinear ---

RowParallelLinearImpl::RowParallelLinearImpl(const Group& group, std::int64_t in_features,
                                             std::int64_t out_features, RowParallelOptions options)
    : options_(std::move(options)), group_(group) {
  std::ostringstream text;
  text << "RowParallelLinear(" << in_features << ", " << out_features << ", bias=" << options_.bias
       << ", input_is_parallel=" << options_.input_is_parallel << sequence_text(options_.sequence_dim) << ")";
  expect_agreement(group, text.str(), options_.generator);
  if (options_.sequence_dim && !options_.input_is_parallel)
    refuse("RowParallelLinear", "sequence_dim without input_is_parallel, expected both");
  divide(group, in_features, "RowParallelLinear: input features");
  weight = register_split("weight", draw_linear({out_features, in_features}, in_features, options_.generator),
                          {group, 1, in_features});
  if (options_.bias)
    bias = register_parameter("bias", draw_linear({out_features}, in_features, options_.generator));
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& input) {
  const at::Tensor part = options_.input_is_parallel ? input : split_to_ranks(group_, input);
  if (part.size(-1) != weight.size(1))
    refuse("RowParallelLinear", "the input has " + std::to_string(part.size(-1)) + " features, expected " +
                                    std::to_string(weight.size(1)) + ", those of this rank");
  const at::Tensor product = at::linear(part, weight);
  if (!options_.sequence_dim) {
    const at::Tensor output = reduce_from_ranks(group_, product);
    return options_.bias ? output + bias.to(output.scalar_type()) : output;
  }
  const at::Tensor output = scatter_sequence(group_, product, *options_.sequence_dim);
  return options_.bias ? output + copy_to_ranks(group_, bias).to(output.scalar_type()) : output;
}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::tensor_parallel::RowParallelLinear(in_features=" << splits().front().second.size
         << ", out_features=" << weight.size(0) << ", ranks=" << group_.size() << ")";
}

// --- SequenceParallelLayerNorm ---

SequenceParallelLayerNormImpl::SequenceParallelLayerNormImpl(const Group& group, std::int64_t width,
                                                             double eps)
    : eps_(eps), group_(group) {
  std::ostringstream text;
  text << "SequenceParallelLayerNorm(" << width << ", eps=" << eps << ")";
  expect_agreement(group, text.str());
  weight = register_parameter("weight", at::ones({width}));
  bias = register_parameter("bias", at::zeros({width}));
}

at::Tensor SequenceParallelLayerNormImpl::forward(const at::Tensor& input) {
  // One collective for the gradients of both.
  const auto both = copy_to_ranks(group_, at::stack({weight, bias})).unbind();
  return at::layer_norm(input, {weight.size(0)}, both[0], both[1], eps_);
}

void SequenceParallelLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::tensor_parallel::SequenceParallelLayerNorm(" << weight.size(0) << ", eps=" << eps_
         << ", ranks=" << group_.size() << ")";
}

}  // namespace weft::tensor_parallel
