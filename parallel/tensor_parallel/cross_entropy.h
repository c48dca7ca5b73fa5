// vocabulary_parallel_cross_entropy: the cross entropy of logits whose columns are split over the ranks of a
// group, without gathering them (Megatron-LM).
//
//   auto logits = tokens->logits(x);      // [batch, sequence, columns of this rank]
//   auto loss = vocabulary_parallel_cross_entropy(group, logits, targets, vocabulary);   // on every rank
//
// The ranks reduce four numbers for each target: the maximum of its logits, the sum of their exponentials,
// the logit of the target, and for label smoothing the sum of all logits. Backward needs no collective. Until
// backward, each rank keeps the probabilities of its columns. Results equal those of
// torch::nn::functional::cross_entropy over the whole logits. If the logits are narrower than float32, the
// loss is computed and returned in float32. As thread-safe as Group.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Reduction.h>

namespace weft::tensor_parallel {

// The counterpart of torch::nn::CrossEntropyLossOptions.
struct CrossEntropyOptions {
  double label_smoothing = 0;        // from 0 to 1
  std::int64_t ignore_index = -100;  // targets of this value have no loss and no gradient
  at::Reduction::Reduction reduction = at::Reduction::Mean;  // over the targets that are not ignored
};

// logits: [..., columns of this rank], as VocabularyParallelEmbedding::logits() returns them. targets: int64,
// of the shape [...], equal on all ranks. vocabulary: the number of columns of all ranks together. Returns a
// scalar, or with at::Reduction::None one loss for each target. All ranks call it with equal options. If the
// tensors are on the CPU, the call blocks until the ranks have exchanged their numbers.
//
// invalid_argument: the shapes do not agree, or an option is out of range. A target that is outside of the
// vocabulary and is not ignored is also an error: on the CPU, the call then fails with invalid_argument on
// all ranks, even if only one of them has such a target. On a device, the loss of such a target is NaN
// instead. unsupported: backward with create_graph.
WEFT_EXPORT at::Tensor vocabulary_parallel_cross_entropy(const collectives::Group& group,
                                                         const at::Tensor& logits, const at::Tensor& targets,
                                                         std::int64_t vocabulary,
                                                         const CrossEntropyOptions& options = {});

}  // namespace weft::tensor_parallel
