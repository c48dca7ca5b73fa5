// Which algorithm a collective takes: a pure function of what there is to do, the same on every rank.
//
// Elements are counted in items of so many bytes. Where every rank's result needs something of every other
// (all_reduce, all_gather, reduce_scatter), a small collective finds by its own messages whether the ranks
// mean the same: where they do not, it ends on none. All others begin with a barrier, so that nothing is
// written before all ranks have agreed; the first that a rank sends leaves beside it. docs/collectives.md has
// the table.
#pragma once

#include <weft/parallel/collectives/plan/algorithms.h>
#include <weft/parallel/collectives/plan/bounds.h>
#include <weft/parallel/collectives/plan/layout.h>

namespace weft::collectives {

struct Party {
  int rank = 0, ranks = 1;
  std::size_t item_size = 1;  // bytes of an element, as it travels
  Bounds bounds = {};
};

// Whether an all_reduce of so many elements does so, and may have changed its output before it is known.
WEFT_EXPORT bool agrees_by_itself(Party me, std::size_t n);

WEFT_EXPORT Plan plan_all_reduce(Party me, std::size_t n);
WEFT_EXPORT Plan plan_reduce(Party me, int root, std::size_t n);
WEFT_EXPORT Plan plan_broadcast(Party me, int root, std::size_t n);
WEFT_EXPORT Plan plan_all_gather(Party me, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_reduce_scatter(Party me, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_gather(Party me, int root, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_scatter(Party me, int root, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_all_to_all(Party me, std::span<const Range> to, std::span<const Range> from);
WEFT_EXPORT Plan plan_barrier(Party me);
WEFT_EXPORT Plan plan_of(Party me, const Layout& layout);  // that of its operation

}  // namespace weft::collectives
