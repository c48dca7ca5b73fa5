// Traffic: which rank reads which data of which other rank, in a collective of ranks that can read each
// other's memory.
//
// A rank has a part of its input for each rank that reads from it: the same part for all readers, or a
// separate part for each. A reader copies the parts into its output, or reduces all ranks' parts into its
// output in the order of ranks. Large reductions whose result several ranks need have two phases (in_blocks):
// each rank reduces its block, then other ranks read the results. Pure functions that allocate no memory,
// because small collectives take about a microsecond.
#pragma once

#include <weft/parallel/collectives/plan/internal/layout.h>

namespace weft::collectives {

class WEFT_EXPORT Traffic {
 public:
  // in_blocks: a reduction in two phases.
  Traffic(const Layout& layout, int rank, int ranks, bool in_blocks);

  Range gives(int taker) const;                      // range of this rank's input; empty: nothing
  Range takes(int giver) const;                      // range of this rank's output
  bool gives_all_the_same() const { return same_; }  // all readers of this rank's input read one range
  bool reduces() const { return reduces_; }          // false: readers copy
  // The maximum number of elements for one rank.
  std::size_t max_given() const;

  // For in_blocks. block(): the block of the result that a rank reduces. takes_result(): whether this rank
  // reads all blocks.
  Range block(int rank) const;
  bool takes_result() const { return layout_.root < 0 || layout_.root == rank_; }

 private:
  Range whole() const { return {0, layout_.elements}; }
  Range as_own(Range block) const { return {0, block.size()}; }  // of a tensor that is only this block
  const Range& block_of(int rank) const { return layout_.blocks[static_cast<std::size_t>(rank)]; }

  const Layout& layout_;
  const int rank_, ranks_;
  const bool in_blocks_;
  bool same_ = true, reduces_ = false;
};

}  // namespace weft::collectives
