#include <weft/parallel/tensor_parallel/internal/vocabulary_part.h>

#include <weft/parallel/tensor_parallel/internal/agreement.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace weft::tensor_parallel {

VocabularyPart VocabularyPart::of(const collectives::Group& group, std::int64_t vocabulary,
                                  const std::string& operation) {
  if (vocabulary < group.size())
    refuse(operation, "a vocabulary of " + std::to_string(vocabulary) + " for " +
                          std::to_string(group.size()) + " ranks, expected at least one word for each rank");
  const Split split{group, 0, vocabulary};
  return {split.begin(), split.length(), vocabulary};
}

VocabularyPart::LocalRows VocabularyPart::local_rows(const at::Tensor& ids) const {
  const at::Tensor local = ids - begin;
  return {local.clamp(0, rows - 1), local.ge(0).logical_and(local.lt(rows))};
}

void refuse_outside(const collectives::Group& group, const VocabularyPart& part, const at::Tensor& ids,
                    const std::string& operation) {
  const at::Tensor flat = ids.reshape(-1), outside = part.outside(flat);
  std::string own;
  if (outside.any().item<bool>()) {
    const auto place = outside.to(at::kInt).argmax().item<std::int64_t>();
    own = "element " + std::to_string(place) + " is " + std::to_string(flat[place].item<std::int64_t>()) +
          " on rank " + std::to_string(group.rank());
  }
  for (const std::string& text : group.all_gather_object(own).get())
    if (!text.empty())
      refuse(operation, text + ", expected ids from 0 to " + std::to_string(part.vocabulary - 1) +
                            ", equal on all ranks");
  refuse(operation,
         "the ranks do not agree which ids are outside of the vocabulary, expected equal ids on all ranks");
}

}  // namespace weft::tensor_parallel
