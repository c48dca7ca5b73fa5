// The block of this bench, split over ranks or whole. torch_peer.py has the same block.
#pragma once

#include "bench/tensor_parallel/work.h"

#include <weft/parallel/tensor_parallel/linear.h>

#include <torch/torch.h>

namespace weft::bench {

// A transformer block with normalization before each part (Xiong et al., 2020), causal attention and GELU.
template <class Column, class Row>
struct Block : torch::nn::Module {
  Block(std::int64_t width, std::int64_t heads_here, Column fused, Row output, Column wide, Row narrow)
      : heads(heads_here) {
    const torch::nn::LayerNormOptions norm({width});
    norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
    norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
    qkv = register_module("qkv", fused);
    out = register_module("out", output);
    up = register_module("up", wide);
    down = register_module("down", narrow);
  }
  at::Tensor forward(const at::Tensor& x) {  // [rows, tokens, width]
    const auto parts = qkv(norm1(x)).unflatten(-1, {3, heads, head_width}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    const at::Tensor y = x + out(attended.transpose(1, 2).flatten(2));
    return y + down(torch::gelu(up(norm2(y))));
  }
  const std::int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Column qkv{nullptr}, up{nullptr};
  Row out{nullptr}, down{nullptr};
};

// The computation of one rank of `parts`, without communication.
inline auto part_of_block(std::int64_t width, std::int64_t parts) {
  using torch::nn::Linear;
  const std::int64_t here = width / parts;
  return Block<Linear, Linear>(width, here / head_width, Linear(width, 3 * here), Linear(here, width),
                               Linear(width, 4 * here), Linear(4 * here, width));
}

inline auto split_block(const collectives::Group& group, std::int64_t width) {
  using namespace tensor_parallel;
  const std::int64_t heads = divide(group, width / head_width, "heads");
  ColumnParallelLinear fused(group, width, 3 * width, ColumnParallelOptions{.blocks = 3});
  RowParallelLinear output(group, width, width);
  ColumnParallelLinear wide(group, width, 4 * width);
  RowParallelLinear narrow(group, 4 * width, width);
  return Block<ColumnParallelLinear, RowParallelLinear>(width, heads, fused, output, wide, narrow);
}

}  // namespace weft::bench
