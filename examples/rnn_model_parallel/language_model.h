// A language model over characters in two parts. The first part has both the embedding and the decoder, so
// each pass is sent from its worker to the other worker and back.
#pragma once

#include <torch/torch.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

// Text is int64 [T, N]: T characters of each of N columns.
struct Coder : torch::nn::Module {
  Coder(std::int64_t characters, std::int64_t width, std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    embedding = register_module("embedding", torch::nn::Embedding(characters, width));
    decoder = register_module("decoder", torch::nn::Linear(width, characters));
  }
  // -> [T, N, width]
  at::Tensor embed(at::Tensor text) { return embedding(text); }
  // [T, N, width], and the characters that follow -> the mean loss, a scalar
  at::Tensor loss(at::Tensor hidden, at::Tensor following) {
    return torch::cross_entropy_loss(decoder(hidden).flatten(0, 1), following.flatten());
  }
  // [T, 1, width] -> a character drawn to follow the last one, [1, 1]
  at::Tensor draw(at::Tensor hidden) { return decoder(hidden[-1]).softmax(-1).multinomial(1); }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear decoder{nullptr};
  using Service =
      weft::rpc::Service<"coder", weft::rpc::Constructor<std::int64_t, std::int64_t, std::int64_t>,
                         weft::rpc::Method<"embed", &Coder::embed>, weft::rpc::Method<"loss", &Coder::loss>,
                         weft::rpc::Method<"draw", &Coder::draw>>;
};

// [T, N, width] -> [T, N, width]. The state continues from call to call, without the graph of earlier calls.
struct Recurrent : torch::nn::Module {
  Recurrent(std::int64_t width, std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    lstm = register_module("lstm", torch::nn::LSTM(width, width));
  }
  at::Tensor forward(at::Tensor embedded) {
    auto [hidden, last] = lstm(embedded, state);
    state = {std::get<0>(last).detach(), std::get<1>(last).detach()};
    return hidden;
  }
  void forget() { state.reset(); }

  torch::nn::LSTM lstm{nullptr};
  std::optional<std::tuple<at::Tensor, at::Tensor>> state;
  using Service = weft::rpc::Service<"recurrent", weft::rpc::Constructor<std::int64_t, std::int64_t>,
                                     weft::rpc::Method<"forward", &Recurrent::forward>,
                                     weft::rpc::Method<"forget", &Recurrent::forget>>;
};
