// Layout: the data of one collective, in elements. A backend makes its plan from the layout.
//
// A value, the same on all ranks except for the sizes of all_to_all_v. Blocks follow each other without gaps,
// one for each rank, and may be empty.
#pragma once

#include <weft/parallel/collectives/plan/internal/plan.h>
#include <weft/parallel/collectives/plan/operation.h>

#include <memory>

namespace weft::collectives {

struct Layout {
  Operation operation = Operation::barrier;
  int root = -1;
  std::size_t elements = 0;  // of the tensor: all_reduce, reduce, broadcast
  // Gathers, scatters, reduce_scatter: the block of each rank. all_to_all: the data for each rank.
  std::vector<Range> blocks;
  std::vector<Range> from;  // all_to_all: the data from each rank
};

// The location of the places of a plan (plan.h) in this process. Each place is contiguous memory for all
// elements that the plan accesses. Places may be the same memory if the plan permits it
// (PlanBuilder::Memory::one). If the accumulator is null, the backend allocates it when it needs one.
struct PlanMemory {
  const std::byte* input = nullptr;
  std::byte* accumulator = nullptr;
  std::byte* output = nullptr;
  std::size_t item_size = 1;     // bytes of an element of input and output
  std::shared_ptr<void> keeper;  // keeps the memory allocated
};

}  // namespace weft::collectives
