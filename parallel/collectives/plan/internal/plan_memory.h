// PlanMemory: the location of the places of a plan (plan.h) in this process. A value.
//
// Each place is contiguous memory for all elements that the plan accesses. Places may be the same memory if
// the plan permits it (PlanBuilder::Memory::one). If the accumulator is null, the backend allocates it when
// it needs one.
#pragma once

#include <cstddef>
#include <memory>

namespace weft::collectives {

struct PlanMemory {
  const std::byte* input = nullptr;
  std::byte* accumulator = nullptr;
  std::byte* output = nullptr;
  std::size_t item_size = 1;     // bytes of an element of input and output
  std::shared_ptr<void> keeper;  // keeps the memory allocated
};

}  // namespace weft::collectives
