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
// A vocabulary that the ranks do not divide is not padded: the first ranks have one row more (split.h), so
// that no row, logit or part of a checkpoint is a padding. An output layer that does not share its weight is
// another VocabularyParallelEmbedding, of which only logits() is used. The whole weight has the values that a
// torch::nn::Embedding draws from the same generator; a rank needs its memory in the constructor.
//
// Construction, errors, groups and thread-safety are those of linear.h. An id outside of the vocabulary on
// any rank is invalid_argument on all ranks on the CPU, where forward reduces one number for it first; on a
// device, where the host does not wait, it gives a row of NaN.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/pimpl.h>

#include <memory>
#include <ostream>

namespace weft::tensor_parallel {

class OverlappedGroup;

// How the layer is split and initialized.
struct VocabularyEmbeddingOptions {
  // Sequence parallel: forward returns this rank's part along that dimension, and logits() takes it.
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
