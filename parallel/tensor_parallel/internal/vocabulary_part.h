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

  // Of ids: where they are in this part, any row of it for others, and which are in it.
  struct Places {
    at::Tensor rows, here;
  };
  Places places_of(const at::Tensor& ids) const;
  at::Tensor outside(const at::Tensor& ids) const { return ids.lt(0).logical_or(ids.ge(vocabulary)); }
};

// Throws invalid_argument on all ranks, which call it together; names the first rank that has such an id.
// ids: of this rank, on the CPU; on one rank at least one of them is outside.
[[noreturn]] void refuse_outside(const collectives::Group& group, const VocabularyPart& part,
                                 const at::Tensor& ids, const std::string& operation);

}  // namespace weft::tensor_parallel
