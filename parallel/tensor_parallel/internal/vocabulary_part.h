// VocabularyPart: the range of a vocabulary that one rank has. A value.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <string>

namespace weft::tensor_parallel {

struct VocabularyPart {
  std::int64_t begin = 0, rows = 0, vocabulary = 0;

  // invalid_argument: fewer words than ranks.
  static VocabularyPart of(const collectives::Group& group, std::int64_t vocabulary,
                           const std::string& operation);

  // The rows of ids in this part (any row for ids outside of it), and whether each id is in this part.
  struct LocalRows {
    at::Tensor rows, here;
  };
  LocalRows local_rows(const at::Tensor& ids) const;
  at::Tensor outside(const at::Tensor& ids) const { return ids.lt(0).logical_or(ids.ge(vocabulary)); }
};

// Throws invalid_argument, which names the first rank that has an id outside of the vocabulary. All ranks
// call it if any rank has such an id. ids: of this rank, on the CPU.
[[noreturn]] void refuse_outside(const collectives::Group& group, const VocabularyPart& part,
                                 const at::Tensor& ids, const std::string& operation);

}  // namespace weft::tensor_parallel
