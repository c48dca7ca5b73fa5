// Preparation of a batch of ids before it is sent: duplicates are removed, and the ids are grouped by owner.
// Pure functions.
#pragma once

#include <weft/dist_optim/embedding/partition.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <span>
#include <vector>

namespace weft::dist_optim {

// A batch without duplicates.
struct UniqueIds {
  std::vector<std::int64_t> ids;      // each once, in the order of their first occurrence
  std::vector<std::int64_t> inverse;  // given[i] == ids[inverse[i]]
};
WEFT_EXPORT UniqueIds unique_ids(std::span<const std::int64_t> given);

// The ids of one owner.
struct OwnerBatch {
  std::vector<std::int64_t> ids;
  std::vector<std::size_t> positions;  // the position of each id among the ids of all owners
};
// Splits the ids ids[p], for each p in `positions`, into one batch for each owner. Batches may be empty.
WEFT_EXPORT std::vector<OwnerBatch> split_by_owner(std::span<const std::int64_t> ids,
                                                   std::span<const std::size_t> positions,
                                                   std::uint32_t owners);

// Gradients of rows, summed for each id.
class WEFT_EXPORT GradientSums {
 public:
  explicit GradientSums(std::size_t dimension) : dimension_(dimension) {}
  void add(std::span<const std::int64_t> ids, const float* gradients);  // ids.size() × dimension
  // take() returns each id once with the sum of its gradients, and empties this object.
  struct Sums {
    std::vector<std::int64_t> ids;
    std::vector<float> gradients;
  };
  Sums take();

 private:
  std::size_t dimension_;
  Sums added_;  // ids may occur several times
};

}  // namespace weft::dist_optim
