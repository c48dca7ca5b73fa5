#include "gpt/model.h"

#include <torch/torch.h>
#include <weft/parallel/tensor_parallel/cross_entropy.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

using namespace weft::tensor_parallel;
using weft::collectives::Group;

namespace {

constexpr double deviation = 0.02;  // the standard deviation of initial embeddings

torch::nn::LayerNorm norm_of(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

struct Embedding : torch::nn::Module {
  Embedding(const Group& tensor, const ModelOptions& options) {
    bytes = register_module("bytes",
                            VocabularyParallelEmbedding(tensor, vocabulary, options.width,
                                                        VocabularyEmbeddingOptions{.deviation = deviation}));
    positions = register_parameter("positions", draw_normal({options.context, options.width}, deviation, {}));
  }
  at::Tensor forward(const at::Tensor& text) { return bytes(text) + positions.narrow(0, 0, text.size(1)); }
  VocabularyParallelEmbedding bytes{nullptr};
  at::Tensor positions;
};

struct Block : torch::nn::Module {
  Block(const Group& tensor, const ModelOptions& options) : heads(divide(tensor, options.heads, "heads")) {
    const std::int64_t width = options.width;
    attention_norm = register_module("attention_norm", norm_of(width));
    attention_in = register_module(
        "attention_in", ColumnParallelLinear(tensor, width, 3 * width, ColumnParallelOptions{.blocks = 3}));
    attention_out = register_module("attention_out", RowParallelLinear(tensor, width, width));
    hidden_norm = register_module("hidden_norm", norm_of(width));
    up = register_module("up", ColumnParallelLinear(tensor, width, 4 * width));
    down = register_module("down", RowParallelLinear(tensor, 4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention_out(attention(attention_in(attention_norm(x))));
    return y + down(torch::gelu(up(hidden_norm(y))));
  }
  // The attention of the heads of this rank. features: the queries, keys and values of these heads.
  at::Tensor attention(const at::Tensor& features) const {
    const auto parts = features.unflatten(-1, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind();
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true)
        .transpose(1, 2)
        .flatten(2);
  }
  const std::int64_t heads;
  torch::nn::LayerNorm attention_norm{nullptr}, hidden_norm{nullptr};
  ColumnParallelLinear attention_in{nullptr}, up{nullptr};
  RowParallelLinear attention_out{nullptr}, down{nullptr};
};

struct Head : torch::nn::Module {
  Head(const Group& tensor, const ModelOptions& options) {
    norm = register_module("norm", norm_of(options.width));
    bytes = register_module("bytes",
                            VocabularyParallelEmbedding(tensor, vocabulary, options.width,
                                                        VocabularyEmbeddingOptions{.deviation = deviation}));
  }
  at::Tensor forward(const at::Tensor& x) { return bytes->logits(norm(x)); }
  torch::nn::LayerNorm norm{nullptr};
  VocabularyParallelEmbedding bytes{nullptr};
};

}  // namespace

weft::pipeline::LayerGraph gpt(const Group& tensor, const ModelOptions& options) {
  weft::pipeline::LayerGraph model;
  model.add("embedding", [=] { return std::make_shared<Embedding>(tensor, options); });
  for (std::int64_t i = 0; i < options.blocks; ++i)
    model.add("block" + std::to_string(i), [=] { return std::make_shared<Block>(tensor, options); });
  model.add("head", [=] { return std::make_shared<Head>(tensor, options); });
  return model;
}

std::vector<int> gpt_cuts(const weft::pipeline::LayerGraph& model, const std::vector<std::string>& names,
                          int stages) {
  std::vector<int> cuts;
  if (names.empty()) {
    const int blocks = model.size() - 2;  // without the embedding and the head
    for (int stage = 1; stage < stages; ++stage) cuts.push_back(1 + stage * blocks / stages);
    return cuts;
  }
  const std::vector<std::string> layers = model.names();
  for (const std::string& name : names) {
    const auto found = std::find(layers.begin(), layers.end(), name);
    if (found == layers.end()) throw std::invalid_argument("the model has no layer '" + name + "' to cut at");
    cuts.push_back(static_cast<int>(found - layers.begin()));
  }
  return cuts;
}

weft::pipeline::Loss gpt_loss(const Group& tensor) {
  return weft::pipeline::loss_of([=](const at::Tensor& logits, const at::Tensor& following) {
    return vocabulary_parallel_cross_entropy(tensor, logits, following, vocabulary);
  });
}
