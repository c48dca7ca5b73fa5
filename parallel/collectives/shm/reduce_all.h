// reduce_all(): the reduction of what all ranks have, where all of it can be read at once.
#pragma once

#include <weft/parallel/collectives/operation/reduction.h>
#include <weft/rpc/core/export.h>

#include <span>

namespace weft::collectives {

// outputs[…][i] = operands[0][i] ⊕ operands[1][i] ⊕ …, in this order, scaled and rounded once, of n elements.
// Outputs may be operands. One operand, which is copied, or more; one output or more.
WEFT_EXPORT void reduce_all(const Reduction& reduction, std::span<const std::byte* const> operands,
                            std::span<std::byte* const> outputs, std::size_t n);

}  // namespace weft::collectives
