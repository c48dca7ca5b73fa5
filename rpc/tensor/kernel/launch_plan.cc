#include <weft/rpc/tensor/kernel/launch_plan.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <limits>

namespace weft::tensor::kernel {

std::vector<Launch> plan_launches(std::span<const std::size_t> counts, LaunchLimits limits) {
  if (limits.pieces == 0 || limits.per_block == 0 || limits.blocks == 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "a kernel's launch without room for anything");
  const std::size_t most = std::min(limits.blocks, std::size_t{std::numeric_limits<std::uint32_t>::max()});
  std::vector<Launch> launches;
  for (std::size_t piece = 0; piece < counts.size(); ++piece) {
    if (counts[piece] == 0) continue;
    const std::size_t blocks = (counts[piece] - 1) / limits.per_block + 1;
    if (blocks > most)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "a piece of " + std::to_string(counts[piece]) + " elements is too large for a kernel");
    if (launches.empty() || launches.back().pieces.size() == limits.pieces ||
        launches.back().blocks > most - blocks)
      launches.emplace_back();
    Launch& launch = launches.back();
    launch.pieces.push_back(piece);
    launch.first_block.push_back(launch.blocks);
    launch.blocks += static_cast<std::uint32_t>(blocks);
  }
  return launches;
}

}  // namespace weft::tensor::kernel
