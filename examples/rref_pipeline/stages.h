// The two stages of a small network that predicts the next number of a sequence from the last two. Each
// worker has one stage.
#pragma once

#include <torch/torch.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

constexpr std::int64_t vocabulary = 97, context = 2;

// [N, context] tokens -> [N, width]
struct Front : torch::nn::Module {
  Front(std::int64_t width, std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    embedding = register_module("embedding", torch::nn::Embedding(vocabulary, width));
    mix = register_module("mix", torch::nn::Linear(context * width, width));
  }
  at::Tensor forward(at::Tensor tokens) {
    RECORD_USER_SCOPE("forward");  // a span, if the call is traced
    return mix(embedding(tokens).flatten(1)).tanh();
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear mix{nullptr};
  using Service = weft::rpc::Service<"front", weft::rpc::Constructor<std::int64_t, std::int64_t>,
                                     weft::rpc::Method<"forward", &Front::forward>>;
};

// [N, width] and targets [N] -> the loss, a scalar
struct Back : torch::nn::Module {
  Back(std::int64_t width, std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    tokens = register_module("tokens", torch::nn::Linear(width, vocabulary));
  }
  at::Tensor loss(at::Tensor hidden, at::Tensor targets) {
    RECORD_USER_SCOPE("forward");
    auto loss = torch::cross_entropy_loss(tokens(hidden), targets);
    losses.push_back(loss.item().toDouble());
    return loss;
  }
  // The mean of the losses since the last call.
  double mean_loss() {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / static_cast<double>(std::exchange(losses, {}).size());
  }

  torch::nn::Linear tokens{nullptr};
  std::vector<double> losses;
  using Service = weft::rpc::Service<"back", weft::rpc::Constructor<std::int64_t, std::int64_t>,
                                     weft::rpc::Method<"loss", &Back::loss>,
                                     weft::rpc::Method<"mean_loss", &Back::mean_loss>>;
};
