#include <weft/parallel/collectives/internal/shm/reduce_all.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::collectives {
namespace {

// This number of bytes of accumulators at a time: they stay in the nearest cache until the last operand has
// been added.
constexpr std::size_t block_bytes = 16 << 10;

}  // namespace

void reduce_all(const Reduction& reduction, std::span<const std::byte* const> operands,
                std::span<std::byte* const> outputs, std::size_t n) {
  const std::size_t item = reduction.item_size();
  if (operands.size() == 1) {
    for (std::byte* output : outputs)
      if (n != 0 && output != operands.front()) std::memcpy(output, operands.front(), n * item);
    return;
  }
  const std::size_t block = block_bytes / reduction.accumulator_size();
  const int ranks = static_cast<int>(operands.size());
  alignas(64) std::array<std::byte, block_bytes> sums;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    const auto operand = [&](std::size_t i) { return Reduction::Operand{operands[i] + begin * item, false}; };
    std::byte* const output = outputs.front() + begin * item;
    // The sum with the last operand is written to its destination, unless it still has to be processed.
    const bool rounds = reduction.accumulates_wide();
    const auto target = [&](std::size_t i) {
      return i + 1 == operands.size() && !rounds ? output : sums.data();
    };
    reduction.combine(target(1), operand(0), operand(1), count);
    for (std::size_t i = 2; i < operands.size(); ++i)
      reduction.combine(target(i), {sums.data(), true}, operand(i), count);
    if (reduction.finishes()) reduction.finish(output, target(operands.size() - 1), count, ranks);
    for (std::byte* other : outputs.subspan(1)) std::memcpy(other + begin * item, output, count * item);
  }
}

}  // namespace weft::collectives
