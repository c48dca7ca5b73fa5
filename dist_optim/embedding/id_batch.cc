#include <weft/dist_optim/embedding/id_batch.h>

#include <bit>
#include <utility>

namespace weft::dist_optim {

UniqueIds unique_ids(std::span<const std::int64_t> given) {
  UniqueIds result;
  result.inverse.reserve(given.size());
  // Open addressing, at most half full: slots hold 1 + a position in result.ids.
  const std::size_t slots = std::bit_ceil(2 * given.size() + 1);
  std::vector<std::uint32_t> table(slots);
  for (const std::int64_t id : given) {
    std::size_t at = rpc::split_mix(static_cast<std::uint64_t>(id)) & (slots - 1);
    while (table[at] != 0 && result.ids[table[at] - 1] != id) at = (at + 1) & (slots - 1);
    if (table[at] == 0) {
      result.ids.push_back(id);
      table[at] = static_cast<std::uint32_t>(result.ids.size());
    }
    result.inverse.push_back(table[at] - 1);
  }
  return result;
}

std::vector<OwnerBatch> split_by_owner(std::span<const std::int64_t> ids,
                                       std::span<const std::size_t> positions, std::uint32_t owners) {
  std::vector<OwnerBatch> batches(owners);
  for (const std::size_t position : positions) {
    OwnerBatch& batch = batches[owner_of(ids[position], owners)];
    batch.ids.push_back(ids[position]);
    batch.positions.push_back(position);
  }
  return batches;
}

void GradientSums::add(std::span<const std::int64_t> ids, const float* gradients) {
  added_.ids.insert(added_.ids.end(), ids.begin(), ids.end());
  added_.gradients.insert(added_.gradients.end(), gradients, gradients + ids.size() * dimension_);
}

GradientSums::Sums GradientSums::take() {
  Sums added = std::exchange(added_, {});
  UniqueIds unique = unique_ids(added.ids);
  if (unique.ids.size() == added.ids.size()) return added;
  Sums sums;
  sums.gradients.resize(unique.ids.size() * dimension_);
  for (std::size_t i = 0; i < added.ids.size(); ++i) {
    float* to = &sums.gradients[static_cast<std::size_t>(unique.inverse[i]) * dimension_];
    for (std::size_t column = 0; column < dimension_; ++column)
      to[column] += added.gradients[i * dimension_ + column];
  }
  sums.ids = std::move(unique.ids);
  return sums;
}

}  // namespace weft::dist_optim
