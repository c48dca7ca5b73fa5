// TransformerBlock: a block with normalization before each part (Xiong et al. 2020) and GELU; 0.8 million
// parameters for width 256. torch_transformer.py has the same block for PyTorch's peers.
#pragma once

#include <torch/torch.h>

namespace weft::bench {

struct TransformerBlock : torch::nn::Module {
  TransformerBlock(std::int64_t width, std::int64_t heads, bool causal) : heads(heads), causal(causal) {
    using torch::nn::Linear;
    const auto norm = [&](const char* name) {
      return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    };
    norm1 = norm("norm1");
    qkv = register_module("qkv", Linear(width, 3 * width));
    out = register_module("out", Linear(width, width));
    norm2 = norm("norm2");
    up = register_module("up", Linear(width, 4 * width));
    down = register_module("down", Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {  // [rows, tokens, width]
    const auto parts = qkv(norm1(x)).unflatten(2, {3, heads, x.size(2) / heads}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, causal);
    const at::Tensor y = x + out(mixed.transpose(1, 2).flatten(2));
    return y + down(torch::gelu(up(norm2(y))));
  }
  std::int64_t heads;
  bool causal;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};

}  // namespace weft::bench
