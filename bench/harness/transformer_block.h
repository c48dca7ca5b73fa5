// TransformerBlock: a block with normalization before each part (Xiong et al. 2020) and GELU; 0.8 million
// parameters for width 256. torch_transformer.py has the same block for PyTorch's peers.
#pragma once

#include <torch/torch.h>

namespace weft::bench {

// Column and Row: the kinds of its linear layers, which may be split over ranks.
template <class Column, class Row>
struct SplitBlock : torch::nn::Module {
  SplitBlock(std::int64_t width, std::int64_t heads, bool causal)
      : SplitBlock(width, heads, causal, Column(width, 3 * width), Row(width, width),
                   Column(width, 4 * width), Row(4 * width, width)) {}
  SplitBlock(std::int64_t width, std::int64_t heads_here, bool causal, Column fused, Row output, Column wide,
             Row narrow)
      : heads(heads_here), causal(causal) {
    const torch::nn::LayerNormOptions norm({width});
    norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
    qkv = register_module("qkv", fused);
    out = register_module("out", output);
    norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
    up = register_module("up", wide);
    down = register_module("down", narrow);
  }
  at::Tensor forward(const at::Tensor& x) {  // [rows, tokens, width]
    const auto parts = qkv(norm1(x)).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, causal);
    const at::Tensor y = x + out(mixed.transpose(1, 2).flatten(2));
    return y + down(torch::gelu(up(norm2(y))));
  }
  const std::int64_t heads;
  const bool causal;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  Column qkv{nullptr}, up{nullptr};
  Row out{nullptr}, down{nullptr};
};

using TransformerBlock = SplitBlock<torch::nn::Linear, torch::nn::Linear>;

}  // namespace weft::bench
