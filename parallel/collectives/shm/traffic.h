// Traffic: who takes what of whom in a collective of ranks that can read each other's memory.
//
// A rank has a part of its input for each that takes of it, the same for all or one for each; a taker copies
// it into its output, or reduces all ranks' parts into it, in the order of ranks. Large reductions whose
// result more than one rank has part in are taken in two: each rank reduces its block, then others take the
// results
// (`blocks`). Pure; nothing is allocated, since small collectives take about a microsecond.
#pragma once

#include <weft/parallel/collectives/plan/layout.h>

namespace weft::collectives {

class WEFT_EXPORT Traffic {
 public:
  // in_blocks: a reduction of the second kind.
  Traffic(const Layout& layout, int rank, int ranks, bool in_blocks);

  Range gives(int taker) const;                      // of this rank's input; empty: nothing
  Range takes(int giver) const;                      // of this rank's output
  bool gives_all_the_same() const { return same_; }  // to those that take anything
  bool reduces() const { return reduces_; }
  // Elements for one rank, at most.
  std::size_t max_given() const;

  // In blocks: the block of the result that a rank reduces, and whether this rank takes all blocks.
  Range block(int rank) const;
  bool takes_result() const { return layout_.root < 0 || layout_.root == rank_; }

 private:
  Range whole() const { return {0, layout_.elements}; }
  Range as_own(Range block) const { return {0, block.size()}; }  // of a tensor that is but this block
  const Range& block_of(int rank) const { return layout_.blocks[static_cast<std::size_t>(rank)]; }

  const Layout& layout_;
  const int rank_, ranks_;
  const bool in_blocks_;
  bool same_ = true, reduces_ = false;
};

}  // namespace weft::collectives
