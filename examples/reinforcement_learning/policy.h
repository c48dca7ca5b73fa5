// The policy of the agent. It chooses the actions of all observers, and learns from the rewards by REINFORCE
// (Williams 1992).
#pragma once

#include <torch/torch.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <random>

class Policy {
 public:
  Policy(std::size_t observers, std::uint64_t seed) {
    torch::manual_seed(seed);
    network_ = torch::nn::Sequential(torch::nn::Linear(4, 64), torch::nn::ReLU(), torch::nn::Linear(64, 2));
    optimizer_ = std::make_unique<torch::optim::Adam>(network_->parameters(), 1e-2);
    for (std::size_t i = 0; i < observers; ++i) episodes_.push_back({std::mt19937_64(seed + i), {}, {}});
  }

  // Whether this observer pushes right in this state [4]. Each observer calls this function at each step, and
  // calls run one at a time. Each observer has separate random numbers, so the order of the observers' calls
  // does not matter.
  bool goes_right(std::int64_t observer, at::Tensor state) {
    Episode& episode = episodes_.at(static_cast<std::size_t>(observer));
    const double probability = network_->forward(state).softmax(0)[1].item().toDouble();
    const bool right = std::bernoulli_distribution(probability)(episode.random);
    episode.states.push_back(std::move(state));
    episode.actions.push_back(right ? 1 : 0);
    return right;
  }

  // Learns from one episode of each observer. rewards: of each episode, step by step.
  void learn(const std::vector<std::vector<double>>& rewards) {
    std::vector<at::Tensor> states, actions, returns;
    for (std::size_t i = 0; i < episodes_.size(); ++i) {
      states.push_back(at::stack(std::exchange(episodes_[i].states, {})));
      actions.push_back(at::tensor(std::exchange(episodes_[i].actions, {})));
      returns.push_back(discounted(rewards[i]));
    }
    auto all = at::cat(returns);
    auto advantages = (all - all.mean()) / (all.std() + 1e-6);
    auto chosen = network_->forward(at::cat(states)).log_softmax(1).gather(1, at::cat(actions).unsqueeze(1));
    optimizer_->zero_grad();
    (-chosen.squeeze(1) * advantages).mean().backward();
    optimizer_->step();
  }

  using Service = weft::rpc::Service<"policy", weft::rpc::Method<"goes_right", &Policy::goes_right>>;

 private:
  struct Episode {
    std::mt19937_64 random;
    std::vector<at::Tensor> states;
    std::vector<std::int64_t> actions;
  };

  // The discounted sum of the rewards from each step on.
  static at::Tensor discounted(std::vector<double> rewards) {
    for (std::size_t i = rewards.size(); i-- > 1;) rewards[i - 1] += 0.99 * rewards[i];
    return at::tensor(rewards, at::kFloat);
  }

  torch::nn::Sequential network_{nullptr};
  std::unique_ptr<torch::optim::Adam> optimizer_;
  std::vector<Episode> episodes_;
};
