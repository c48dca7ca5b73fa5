// Layout: the data of one collective, in elements. A backend makes its plan from the layout.
//
// A value, the same on all ranks except for the sizes of all_to_all_v. Blocks follow each other without gaps,
// one for each rank, and may be empty.
#pragma once

#include <weft/parallel/collectives/plan/internal/plan.h>
#include <weft/parallel/collectives/plan/operation.h>

namespace weft::collectives {

struct Layout {
  Operation operation = Operation::barrier;
  int root = -1;
  std::size_t elements = 0;  // of the tensor: all_reduce, reduce, broadcast
  // Gathers, scatters, reduce_scatter: the block of each rank. all_to_all: the data for each rank.
  std::vector<Range> blocks;
  std::vector<Range> from;  // all_to_all: the data from each rank
};

}  // namespace weft::collectives
