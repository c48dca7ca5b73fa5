// reduce_all(): reduces the data of all ranks, if all of it can be read at the same time.
#pragma once

#include <weft/parallel/collectives/operation/internal/reduction.h>
#include <weft/rpc/core/export.h>

#include <span>

namespace weft::collectives {

// For each i < n: outputs[…][i] = operands[0][i] ⊕ operands[1][i] ⊕ …, in this order, scaled and rounded
// once. Outputs may be operands. At least one operand (a single one is copied) and at least one output.
WEFT_EXPORT void reduce_all(const Reduction& reduction, std::span<const std::byte* const> operands,
                            std::span<std::byte* const> outputs, std::size_t n);

}  // namespace weft::collectives
