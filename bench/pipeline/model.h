// The models of this bench. torch_peer.py and torch_rpc_peer.py have the same models.
#pragma once

#include "bench/pipeline/work.h"

#include <weft/parallel/pipeline/layer_graph.h>

#include <torch/torch.h>

#include "examples/pipeline_resnet/resnet.h"

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

struct Scale : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor = register_parameter("factor", at::ones({1}));
};

inline pipeline::LayerGraph layers_of(const Work& work) {
  if (work.model == Model::resnet50) return resnet50(tutorial_classes, tutorial_width, 3, true);
  pipeline::LayerGraph model;
  for (int block = 0; block < work.blocks; ++block) {
    const std::string name = "block" + std::to_string(block);
    if (work.model == Model::transformer)
      model.add(name, [width = work.width] { return std::make_shared<TransformerBlock>(width); });
    else
      model.add(name, [] { return std::make_shared<Scale>(); });
  }
  return model;
}

inline std::vector<int> cuts_of(const Work& work, int stages) {
  if (work.model == Model::resnet50) return {8};  // after the second group of blocks
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(work.blocks * stage / stages);
  return cuts;
}

struct Data {
  at::Tensor input, target;  // the rows of all micro-batches
};
inline Data data_of(const Work& work) {
  const std::int64_t rows = work.rows * work.microbatches;
  if (work.model == Model::resnet50)
    return {torch::randn({rows, 3, tutorial_image, tutorial_image}), torch::randn({rows, tutorial_classes})};
  if (work.model == Model::scale) return {torch::randn({rows, 1}), torch::randn({rows, 1})};
  const at::Tensor input = torch::randn({rows, work.tokens, work.width});
  return {input, torch::randn_like(input)};
}

}  // namespace weft::bench
