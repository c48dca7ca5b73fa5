// ColumnParallelLinear, RowParallelLinear: linear layers whose weights are split over the ranks of a group
// (Megatron-LM; Shoeybi et al., 2019).
//
//   auto up = register_module("up", ColumnParallelLinear(group, width, 4 * width));
//   auto down = register_module("down", RowParallelLinear(group, 4 * width, width));
//   ...
//   x = x + down(torch::gelu(up(x)));      // one all-reduce in forward, and one in backward
//
// A column-parallel layer has some of the output features on each rank, a row-parallel layer some of the
// input features. If the column-parallel layer is first, the two layers need no collective between them. For
// any number of ranks, the whole weight has the values that a torch::nn::Linear draws from the same
// generator: the constructor draws the whole weight and then splits it, so it needs memory for the whole
// weight.
//
// Sequence parallel (Korthikanti et al., 2022): outside of the two layers each rank has a part of the
// sequence, along `sequence_dim`. The column-parallel layer gathers the sequence and the row-parallel layer
// scatters it. If a parameter is used on parts of the sequence, such as the weight of a norm, pass it through
// copy_to_ranks(), so that its gradient is the sum over the ranks; SequenceParallelLayerNorm does this.
//
// All ranks construct these layers in the same order, with equal arguments and with generators in the same
// state; the constructors block. The ranks' inputs are equal, or parts as the options state.
// invalid_argument: a size is not a multiple of the group's size; on all ranks, if arguments or generators
// differ. Forward and backward run collectives and throw their errors. Use another group, for example
// group.split(0), for collectives that run at the same time. create_graph is unsupported for
// ColumnParallelLinear. Not thread-safe, as all modules.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>

namespace weft::tensor_parallel {

class OverlappedGroup;

// How the layer is split and initialized.
struct ColumnParallelOptions {
  bool bias = true;            // each rank has its part of the bias
  bool gather_output = false;  // true: every rank gets all output features
  // Sequence parallel: the input is this rank's part along that dimension.
  std::optional<std::int64_t> sequence_dim = {};
  // The number of equal blocks into which the output features are divided; each rank has a part of every
  // block. For example 3, for queries, keys and values in one layer.
  std::int64_t blocks = 1;
  std::optional<at::Generator> generator = {};  // draw_uniform()
};

class WEFT_EXPORT ColumnParallelLinearImpl final : public SplitModule {
 public:
  ColumnParallelLinearImpl(const collectives::Group& group, std::int64_t in_features,
                           std::int64_t out_features, ColumnParallelOptions options = {});

  // input: [..., in_features]. Returns [..., out_features / ranks], or all with gather_output. Backward
  // starts the all-reduce (or reduce-scatter) of the input's gradient before it computes the weight's.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight, bias;  // [out_features / ranks, in_features], [out_features / ranks] or undefined

 private:
  const ColumnParallelOptions options_;
  const std::shared_ptr<OverlappedGroup> ranks_;
};
TORCH_MODULE(ColumnParallelLinear);

// How the layer is split and initialized.
struct RowParallelOptions {
  bool bias = true;  // all ranks have the bias, and add it to the sum
  // true: the input is this rank's features, as a ColumnParallelLinear returns them. false: the input is
  // equal on all ranks, and each rank uses its part of the features.
  bool input_is_parallel = true;
  // Sequence parallel: the output is this rank's part along that dimension. Only with input_is_parallel.
  std::optional<std::int64_t> sequence_dim = {};
  std::optional<at::Generator> generator = {};
};

class WEFT_EXPORT RowParallelLinearImpl final : public SplitModule {
 public:
  RowParallelLinearImpl(const collectives::Group& group, std::int64_t in_features, std::int64_t out_features,
                        RowParallelOptions options = {});

  // input: [..., in_features / ranks], or [..., in_features] without input_is_parallel. Returns the sum over
  // the ranks, [..., out_features]; with sequence_dim, this rank's part of the sum.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight, bias;  // [out_features, in_features / ranks], [out_features] or undefined

 private:
  const RowParallelOptions options_;
  const collectives::Group group_;
};
TORCH_MODULE(RowParallelLinear);

// A layer norm over the last dimension, for sequence parallel: each rank has a part of the sequence.
class WEFT_EXPORT SequenceParallelLayerNormImpl final : public torch::nn::Module {
 public:
  SequenceParallelLayerNormImpl(const collectives::Group& group, std::int64_t width, double eps = 1e-5);
  at::Tensor forward(const at::Tensor& input);  // [..., width]
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight, bias;  // [width], equal on all ranks

 private:
  const double eps_;
  const collectives::Group group_;
};
TORCH_MODULE(SequenceParallelLayerNorm);

}  // namespace weft::tensor_parallel
