#include <weft/parallel/collectives/internal/shm/traffic.h>

#include <algorithm>

namespace weft::collectives {

Traffic::Traffic(const Layout& layout, int rank, int ranks, bool in_blocks)
    : layout_(layout), rank_(rank), ranks_(ranks), in_blocks_(in_blocks) {
  switch (layout.operation) {
    case Operation::all_reduce:
    case Operation::reduce:
      same_ = !in_blocks;
      reduces_ = true;
      break;
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      same_ = false;
      reduces_ = true;
      break;
    case Operation::scatter:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      same_ = false;
      break;
    default:
      break;
  }
}

Range Traffic::block(int rank) const {
  // The longer ones first, as even_blocks().
  const std::size_t parts = static_cast<std::size_t>(ranks_), part = static_cast<std::size_t>(rank);
  const std::size_t size = layout_.elements / parts, longer = layout_.elements % parts;
  const std::size_t begin = part * size + std::min(part, longer);
  return {begin, begin + size + (part < longer ? 1 : 0)};
}

Range Traffic::gives(int taker) const {
  switch (layout_.operation) {
    case Operation::all_reduce:
      return in_blocks_ ? block(taker) : whole();
    case Operation::reduce:
      return in_blocks_ ? block(taker) : taker == layout_.root ? whole() : Range{};
    case Operation::broadcast:
      return rank_ == layout_.root ? whole() : Range{};
    case Operation::all_gather:
    case Operation::all_gather_v:
      return as_own(block_of(rank_));
    case Operation::gather:
      return taker == layout_.root ? as_own(block_of(rank_)) : Range{};
    case Operation::scatter:
      return rank_ == layout_.root ? block_of(taker) : Range{};
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      return block_of(taker);
    case Operation::barrier:
      return {};
  }
  return {};
}

Range Traffic::takes(int giver) const {
  switch (layout_.operation) {
    case Operation::all_reduce:
      return in_blocks_ ? block(rank_) : whole();
    case Operation::reduce:
      return in_blocks_ ? block(rank_) : rank_ == layout_.root ? whole() : Range{};
    case Operation::broadcast:
      return giver == layout_.root ? whole() : Range{};
    case Operation::all_gather:
    case Operation::all_gather_v:
      return block_of(giver);
    case Operation::gather:
      return rank_ == layout_.root ? block_of(giver) : Range{};
    case Operation::scatter:
      return giver == layout_.root ? as_own(block_of(rank_)) : Range{};
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      return as_own(block_of(rank_));
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      return layout_.from[static_cast<std::size_t>(giver)];
    case Operation::barrier:
      return {};
  }
  return {};
}

std::size_t Traffic::max_given() const {
  std::size_t most = 0;
  for (int taker = 0; taker < ranks_; ++taker) most = std::max(most, gives(taker).size());
  return most;
}

}  // namespace weft::collectives
