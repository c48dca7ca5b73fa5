// The block of this bench, split over ranks or whole. torch_peer.py has the same block.
#pragma once

#include "bench/harness/transformer_block.h"
#include "bench/tensor_parallel/work.h"

#include <weft/parallel/tensor_parallel/linear.h>

#include <torch/torch.h>

namespace weft::bench {

// The computation of one rank of `parts`, without communication.
inline auto part_of_block(std::int64_t width, std::int64_t parts) {
  using torch::nn::Linear;
  const std::int64_t here = width / parts;
  return TransformerBlock(width, here / head_width, true, Linear(width, 3 * here), Linear(here, width),
                          Linear(width, 4 * here), Linear(4 * here, width));
}

inline auto split_block(const collectives::Group& group, std::int64_t width) {
  using namespace tensor_parallel;
  const std::int64_t heads = divide(group, width / head_width, "heads");
  ColumnParallelLinear fused(group, width, 3 * width, ColumnParallelOptions{.blocks = 3});
  RowParallelLinear output(group, width, width);
  ColumnParallelLinear wide(group, width, 4 * width);
  RowParallelLinear narrow(group, 4 * width, width);
  return SplitBlock<ColumnParallelLinear, RowParallelLinear>(width, heads, true, fused, output, wide, narrow);
}

}  // namespace weft::bench
