#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>

#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/parallel/tensor_parallel/internal/column_product.h>
#include <weft/parallel/tensor_parallel/internal/vocabulary_part.h>

#include <ATen/Functions.h>

#include <limits>
#include <sstream>

namespace weft::tensor_parallel {

VocabularyParallelEmbeddingImpl::VocabularyParallelEmbeddingImpl(const collectives::Group& group,
                                                                 std::int64_t vocabulary, std::int64_t width,
                                                                 VocabularyEmbeddingOptions options)
    : options_(std::move(options)), ranks_(std::make_shared<OverlappedGroup>(group)) {
  std::ostringstream text;
  text << "VocabularyParallelEmbedding(" << vocabulary << ", " << width
       << ", deviation=" << options_.deviation;
  if (options_.sequence_dim) text << ", sequence_dim=" << *options_.sequence_dim;
  expect_agreement(group, text.str() + ")", options_.generator);
  (void)VocabularyPart::of(group, vocabulary, "VocabularyParallelEmbedding");
  weight = register_split("weight", draw_normal({vocabulary, width}, options_.deviation, options_.generator),
                          {group, 0, vocabulary});
}

at::Tensor VocabularyParallelEmbeddingImpl::forward(const at::Tensor& ids) {
  const collectives::Group& group = ranks_->group();
  const auto part = VocabularyPart::of(group, splits().front().second.size, "VocabularyParallelEmbedding");
  const at::Tensor outside = part.outside(ids);
  if (ids.is_cpu()) {  // a rank that threw alone would leave the others waiting in the reduction
    const at::Tensor found = outside.any().to(at::kLong);
    group.wait(group.inlined().all_reduce(found, collectives::ReduceOp::max));
    if (found.item<std::int64_t>() != 0) refuse_outside(group, part, ids, "VocabularyParallelEmbedding");
  }
  const auto [rows, here] = part.local_rows(ids);
  at::Tensor own = at::embedding(weight, rows).masked_fill(here.logical_not().unsqueeze(-1), 0);
  if (!ids.is_cpu()) own = own.masked_fill(outside.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
  return options_.sequence_dim ? scatter_sequence(group, own, *options_.sequence_dim)
                               : reduce_from_ranks(group, own);
}

at::Tensor VocabularyParallelEmbeddingImpl::logits(const at::Tensor& input) {
  return column_product(ranks_, input, weight, {}, options_.sequence_dim);
}

void VocabularyParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::tensor_parallel::VocabularyParallelEmbedding(" << splits().front().second.size << ", "
         << weight.size(1) << ", ranks=" << ranks_->group().size() << ")";
}

}  // namespace weft::tensor_parallel
