// The models of this bench, with a batch and a loss each. torch_peer.py has the same ones.
#pragma once

#include "bench/ddp/work.h"
#include "examples/ddp_train/resnet.h"

#include <torch/torch.h>

#include <memory>

namespace weft::bench {

// 25 million parameters and little arithmetic: batch 8.
struct Mlp : torch::nn::Module {
  Mlp() {
    for (int i = 0; i < 6; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(2048, 2048)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = torch::relu(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

// A million rows with sparse gradients, and a small dense part.
struct Table : torch::nn::Module {
  Table() {
    rows = register_module("rows",
                           torch::nn::Embedding(torch::nn::EmbeddingOptions(1'000'000, 16).sparse(true)));
    head = register_module("head", torch::nn::Linear(16 * 32, 64));
  }
  at::Tensor forward(const at::Tensor& indices) { return head(rows(indices).flatten(1)); }
  torch::nn::Embedding rows{nullptr};
  torch::nn::Linear head{nullptr};
};

// f(module, input, loss): loss is a function of the module's output.
template <class F>
void with_model(const Work& work, int rank, F f) {
  torch::manual_seed(static_cast<std::uint64_t>(1 + rank));
  const auto squares = [](const at::Tensor& output) { return output.square().mean(); };
  switch (work.model) {
    case Model::mlp25m:
      return f(std::make_shared<Mlp>(), at::randn({8, 2048}), squares);
    case Model::resnet18:
      return f(std::make_shared<ResNet18>(10, 64, 3), at::randn({work.batch, 3, 32, 32}), squares);
    case Model::embedding:
      return f(std::make_shared<Table>(), at::randint(1'000'000, {256, 32}), squares);
  }
}

}  // namespace weft::bench
