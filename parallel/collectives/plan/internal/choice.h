// Selects the algorithm of a collective: a pure function of its sizes, the same on every rank.
//
// Elements are counted in items of `item_size` bytes. If every rank's result needs data of every other rank
// (all_reduce, all_gather, reduce_scatter), a small collective needs no barrier: its messages carry the
// signatures' hashes, and if the ranks' signatures differ, it completes on no rank. All other collectives
// begin with a barrier, so that no output is written before all ranks have agreed; the first data of a rank
// are sent together with the barrier's messages. docs/internals/collectives.md has the table.
#pragma once

#include <weft/parallel/collectives/plan/bounds.h>
#include <weft/parallel/collectives/plan/internal/algorithms.h>
#include <weft/parallel/collectives/plan/internal/layout.h>

namespace weft::collectives {

// The rank that a plan is for. All fields except the rank must be equal on all ranks.
struct Party {
  int rank = 0, ranks = 1;
  std::size_t item_size = 1;  // bytes of an element on the wire
  Bounds bounds = {};         // at which the algorithm changes
};

// Whether an all_reduce of n elements has no barrier, so that it may have changed its output when a
// difference is detected.
WEFT_EXPORT bool agrees_by_itself(Party me, std::size_t n);

// The plan of one operation. n: elements of the tensor. blocks: one for each rank. to, from: the blocks for
// each rank, and from each rank. Roots are ranks.
WEFT_EXPORT Plan plan_all_reduce(Party me, std::size_t n);
WEFT_EXPORT Plan plan_reduce(Party me, int root, std::size_t n);
WEFT_EXPORT Plan plan_broadcast(Party me, int root, std::size_t n);
WEFT_EXPORT Plan plan_all_gather(Party me, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_reduce_scatter(Party me, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_gather(Party me, int root, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_scatter(Party me, int root, std::span<const Range> blocks);
WEFT_EXPORT Plan plan_all_to_all(Party me, std::span<const Range> to, std::span<const Range> from);
WEFT_EXPORT Plan plan_barrier(Party me);
WEFT_EXPORT Plan plan_of(Party me, const Layout& layout);  // of the layout's operation

}  // namespace weft::collectives
