// The model of this bench: torch_peer.py has the same.
#pragma once

#include "bench/pipeline/work.h"

#include <weft/parallel/pipeline/layer_graph.h>

#include <torch/torch.h>

#include <cmath>

namespace weft::bench {

// A transformer block with normalization before each part (Xiong et al. 2020), four heads and GELU.
struct TransformerBlock : torch::nn::Module {
  explicit TransformerBlock(std::int64_t width) {
    using torch::nn::Linear;
    const auto norm = [&](const char* name) {
      return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    };
    norm1 = norm("norm1");
    norm2 = norm("norm2");
    qkv = register_module("qkv", Linear(width, 3 * width));
    out = register_module("out", Linear(width, width));
    up = register_module("up", Linear(width, 4 * width));
    down = register_module("down", Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {  // [rows, tokens, width]
    constexpr std::int64_t heads = 4;
    const auto split = qkv(norm1(x)).unflatten(2, {3, heads, x.size(2) / heads}).permute({2, 0, 3, 1, 4});
    const at::Tensor attended = at::scaled_dot_product_attention(split[0], split[1], split[2]);
    const at::Tensor y = x + out(attended.transpose(1, 2).flatten(2));
    return y + down(torch::gelu(up(norm2(y))));
  }
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};

inline pipeline::LayerGraph transformer(const Work& work) {
  pipeline::LayerGraph model;
  for (int block = 0; block < work.blocks; ++block)
    model.add("block" + std::to_string(block),
              [width = work.width] { return std::make_shared<TransformerBlock>(width); });
  return model;
}

inline std::vector<int> cuts_of(const Work& work, int stages) {
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(work.blocks * stage / stages);
  return cuts;
}

}  // namespace weft::bench
