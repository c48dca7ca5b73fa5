// VocabularyParallelEmbedding: a table of embeddings whose rows are split over the ranks of a group
// (Megatron-LM).
//
//   auto tokens = register_module("tokens", VocabularyParallelEmbedding(group, vocabulary, width));
//   ...
//   x = tokens(ids);                        // every rank gets the whole embeddings
//   ...
//   auto logits = tokens->logits(x);        // the same weight as the output layer: this rank's columns
//   auto loss = vocabulary_parallel_cross_entropy(group, logits, targets, vocabulary);
//
// If the size of the vocabulary is not a multiple of the number of ranks, the first ranks have one row more
// (split.h), and no rows are padding. For an output layer that does not share its weight, use logits() of a
// second VocabularyParallelEmbedding. The whole weight has the values that a torch::nn::Embedding draws from
// the same generator; the constructor needs memory for the whole weight.
//
// Construction, errors, groups and thread-safety are those of linear.h. If a rank on the CPU has an id
// outside of the vocabulary, forward fails with invalid_argument on all ranks; it first reduces one number to
// detect this. On a device, where the host does not wait, such an id gives a row of NaN.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>

namespace weft::tensor_parallel {

class OverlappedGroup;

// How the layer is split and initialized.
struct VocabularyEmbeddingOptions {
  // Sequence parallel: forward returns, and logits() expects, this rank's part along that dimension.
  std::optional<std::int64_t> sequence_dim = {};
  double deviation = 1;                         // of the normal distribution of the initial values
  std::optional<at::Generator> generator = {};  // draw_normal()
};

class WEFT_EXPORT VocabularyParallelEmbeddingImpl final : public SplitModule {
 public:
  VocabularyParallelEmbeddingImpl(const collectives::Group& group, std::int64_t vocabulary,
                                  std::int64_t width, VocabularyEmbeddingOptions options = {});

  // ids: int64, of any shape, equal on all ranks. Returns [..., width].
  at::Tensor forward(const at::Tensor& ids);
  // input: [..., width]. Returns its products with the rows of this rank.
  at::Tensor logits(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor weight;  // [rows of this rank, width]

 private:
  const VocabularyEmbeddingOptions options_;
  const std::shared_ptr<OverlappedGroup> ranks_;
};
TORCH_MODULE(VocabularyParallelEmbedding);

}  // namespace weft::tensor_parallel
