// The network in two parts: convolutions that all trainers share, and a head that each trainer owns.
#pragma once

#include <torch/torch.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

// [N, 1, 28, 28] -> [N, 32 * 7 * 7]
struct Shared : torch::nn::Module {
  torch::nn::Conv2d edges{
      register_module("edges", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 5).padding(2)))};
  torch::nn::Conv2d shapes{
      register_module("shapes", torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)))};

  at::Tensor forward(at::Tensor images) {
    auto x = torch::max_pool2d(edges(images), 2).relu();
    x = torch::max_pool2d(shapes(x), 2).relu();
    return x.flatten(1);
  }
  using Service =
      weft::rpc::Service<"shared", weft::rpc::Constructor<>, weft::rpc::Method<"forward", &Shared::forward>>;
};

// [N, 32 * 7 * 7] -> logits [N, 10]
struct Head : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(32 * 7 * 7, 128))};
  torch::nn::Linear classes{register_module("classes", torch::nn::Linear(128, 10))};

  at::Tensor forward(at::Tensor features) { return classes(hidden(features).relu()); }
};

// Both parts, for a worker that computes the whole network.
struct Network : torch::nn::Module {
  std::shared_ptr<Shared> shared = register_module("shared", std::make_shared<Shared>());
  std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>());

  at::Tensor forward(at::Tensor images) { return head->forward(shared->forward(images)); }
};

inline std::int64_t count_right(const at::Tensor& logits, const at::Tensor& labels) {
  return logits.argmax(1).eq(labels).sum().item().toLong();
}
