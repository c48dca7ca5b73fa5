// LaunchPlan: how a kernel over many pieces of memory is cut into launches.
//
// What a kernel is given by value is a table of limited size, so a launch takes so many pieces; each of them
// has blocks of its own, of `per_block` elements, and a block finds its piece with slot_of(). Hundreds of
// small pieces are a few launches, and one large piece has as many blocks as several of its size together.
// Pure; pieces keep their order, and those without elements are left out.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/tensor/kernel/host_device.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::tensor::kernel {

struct LaunchLimits {
  std::size_t pieces;                 // of one launch
  std::size_t per_block;              // elements
  std::size_t blocks = 0x7FFF'FFFFu;  // of one launch: what CUDA allows in a grid's x
};

struct Launch {
  std::vector<std::size_t> pieces;         // which
  std::vector<std::uint32_t> first_block;  // of each piece, within the launch; begins with 0
  std::uint32_t blocks = 0;
};

// counts: elements of each piece. invalid_argument for a limit of 0, or a piece that no launch has room for.
WEFT_EXPORT std::vector<Launch> plan_launches(std::span<const std::size_t> counts, LaunchLimits limits);

// Which of the pieces, of which there is at least one, a block belongs to.
WEFT_HOST_DEVICE inline std::uint32_t slot_of(const std::uint32_t* first_block, std::uint32_t pieces,
                                              std::uint32_t block) {
  std::uint32_t low = 0, high = pieces;  // first_block[low] <= block < first_block[high]
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (first_block[middle] <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace weft::tensor::kernel
