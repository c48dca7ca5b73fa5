// Experts over ranks against a loop over tokens and experts in one process.
#include <weft/parallel/tensor_parallel/mixture_of_experts.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::mixture_of_experts_test {
namespace {

using namespace testing;

constexpr std::int64_t width = 4, hidden = 6, experts = 12, tokens = 8;  // tokens of each rank

// The whole layer, token by token.
struct Loop : torch::nn::Module {
  explicit Loop(MixtureOptions o) : options(std::move(o)) {
    auto drawn = generator(11);
    const auto draw = [&](const char* name, at::IntArrayRef sizes, std::int64_t inputs) {
      return register_parameter(
          name, draw_uniform(sizes, 1 / std::sqrt(static_cast<double>(inputs)), drawn).to(at::kDouble));
    };
    router = draw("router", {experts, width}, width);
    up = draw("up", {experts, hidden, width}, width);
    up_bias = draw("up_bias", {experts, hidden}, width);
    down = draw("down", {experts, width, hidden}, hidden);
    down_bias = draw("down_bias", {experts, width}, hidden);
  }
  // inputs: by rank, because a capacity applies to the tokens of one rank. Returns the outputs by rank, and
  // the balance loss.
  std::pair<std::vector<at::Tensor>, at::Tensor> forward(const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> outputs;
    at::Tensor fractions = at::zeros({experts}, at::kDouble), mean = at::zeros({experts}, at::kDouble);
    for (const at::Tensor& input : inputs) {
      const at::Tensor probabilities = at::linear(input, router).softmax(-1);
      const auto [top, indices] = probabilities.topk(options.top_k, -1);
      std::vector<std::int64_t> taken(experts, 0);
      std::vector<at::Tensor> rows(static_cast<std::size_t>(input.size(0)), at::zeros({width}, at::kDouble));
      const auto capacity = options.capacity_factor
                                ? std::ceil(*options.capacity_factor * static_cast<double>(input.size(0)) *
                                            static_cast<double>(options.top_k) / experts)
                                : 1e9;
      for (std::int64_t choice = 0; choice < options.top_k; ++choice)
        for (std::int64_t token = 0; token < input.size(0); ++token) {
          const auto expert = indices[token][choice].item<std::int64_t>();
          fractions[expert] += 1;
          if (static_cast<double>(taken[static_cast<std::size_t>(expert)]++) >= capacity) continue;
          const at::Tensor weight =
              options.normalize ? top[token][choice] / top[token].sum() : top[token][choice];
          at::Tensor& row = rows[static_cast<std::size_t>(token)];
          row = row + weight * at::linear(at::gelu(at::linear(input[token], up[expert], up_bias[expert])),
                                          down[expert], down_bias[expert]);
        }
      outputs.push_back(at::stack(rows));
      mean = mean + probabilities.sum(0);
    }
    return {
        outputs,
        experts * (fractions / fractions.sum() * mean / (tokens * static_cast<double>(inputs.size()))).sum()};
  }
  const MixtureOptions options;
  at::Tensor router, up, up_bias, down, down_bias;
};

std::vector<MixtureOptions> cases() {
  MixtureOptions one{.experts = experts, .hidden = hidden};
  MixtureOptions two = one;
  two.top_k = 2;
  MixtureOptions normalized = two;
  normalized.normalize = true;
  MixtureOptions capped = two;
  capped.capacity_factor = 1.0;
  return {one, two, normalized, capped};
}

class Mixtures : public OnRanks {
 protected:
  at::Tensor input_of(int rank, int step = 0) const {
    return numbers({tokens, width}, static_cast<std::uint64_t>(10 * step + rank + 1));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Mixtures, up_to_four());

TEST_P(Mixtures, EqualALoopOverTokens) {
  for (const MixtureOptions& options : cases()) {
    Loop loop(options);
    torch::optim::SGD optimizer(loop.parameters(), 0.05);
    std::vector<std::vector<at::Tensor>> inputs, outputs;
    std::vector<at::Tensor> balances;
    for (int step = 0; step < 20; ++step) {
      inputs.emplace_back();
      for (int rank = 0; rank < ranks; ++rank) inputs.back().push_back(input_of(rank, step).requires_grad_());
      optimizer.zero_grad();
      const auto [output, balance] = loop.forward(inputs.back());
      outputs.push_back(output);
      balances.push_back(balance);
      at::Tensor loss = ranks * balance;
      for (const at::Tensor& each : output) loss = loss + each.square().sum();
      loss.backward();
      optimizer.step();
    }
    on_ranks(groups, [&](const Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      MixtureOptions own_options = options;
      own_options.generator = generator(11);
      MixtureOfExperts own(group, width, own_options);
      own->to(at::kDouble);
      torch::optim::SGD own_optimizer(own->parameters(), 0.05);
      for (std::size_t step = 0; step < inputs.size(); ++step) {
        const at::Tensor x = inputs[step][rank].detach().clone().requires_grad_();
        own_optimizer.zero_grad();
        const auto [output, balance] = own(x);
        (output.square().sum() + balance).backward();
        group.all_reduce(own->router.grad()).get();  // a replicated parameter
        at::Tensor mean = balance.detach().clone();
        group.all_reduce(mean, ReduceOp::avg).get();
        expect_close({output.detach(), x.grad(), mean},
                     {outputs[step][rank].detach(), inputs[step][rank].grad(), balances[step].detach()});
        own_optimizer.step();
      }
      expect_parts(*own, loop);
    });
  }
}

TEST_P(Mixtures, GradientsOfExpertsMayBeAveraged) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<at::Tensor> gradients;
    for (const bool average : {false, true}) {
      MixtureOfExperts own(
          group, width,
          MixtureOptions{.experts = experts, .average_gradients = average, .generator = generator(11)});
      own->to(at::kDouble);
      own(input_of(group.rank())).output.sum().backward();
      gradients.push_back(own->up.grad());
    }
    expect_close({gradients[0] / ranks}, {gradients[1]});
  });
}

// Rank 0 has no tokens.
TEST_P(Mixtures, ARankMayHaveNoTokens) {
  on_ranks(groups, [&](const Group& group) {
    MixtureOfExperts own(group, width,
                         MixtureOptions{.experts = experts, .top_k = 2, .generator = generator(11)});
    own->to(at::kDouble);
    const at::Tensor x =
        (group.rank() == 0 ? at::zeros({0, width}, at::kDouble) : input_of(group.rank())).requires_grad_();
    const auto [output, balance] = own(x);
    (output.sum() + balance).backward();
    EXPECT_EQ(output.sizes(), x.sizes());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_TRUE(own->up.grad().defined());
  });
}

TEST_P(Mixtures, ANodeExecutorHasTheGradientsOfBackward) {
  on_ranks(groups, [&](const Group& group) {
    MixtureOfExperts own(group, width,
                         MixtureOptions{.experts = experts, .top_k = 2, .generator = generator(11)});
    own->to(at::kDouble);
    const auto loss = [&] {
      const auto [output, balance] = own(input_of(group.rank()));
      return output.square().sum() + balance;
    };
    expect_same_in_node_executor(loss, own->parameters());
  });
}

TEST_P(Mixtures, WrongOptionsAreRefused) {
  const auto refused = [&](const std::string& word, MixtureOptions options) {
    expect_refused(groups, ErrorKind::invalid_argument, {word},
                   [&](const Group& group) { MixtureOfExperts(group, width, options); });
  };
  if (ranks > 1) refused("MixtureOfExperts: experts: 13", {.experts = 13});
  refused("top_k is 13, expected 1 to 12", {.experts = experts, .top_k = 13});
  refused("capacity_factor is", {.experts = experts, .capacity_factor = 0.0});
}

TEST_P(Mixtures, AnAbortOfOneRankFailsTheForwardOfTheOthers) {
  if (ranks == 1) return;
  expect_refused(groups, ErrorKind::aborted, {abort_reason}, [&](const Group& group) {
    MixtureOfExperts own(group, width, MixtureOptions{.experts = experts, .generator = generator(1)});
    if (group.rank() == 1) abort_and_leave(group);
    own(at::ones({2, width}));
  });
}

}  // namespace
}  // namespace weft::tensor_parallel::mixture_of_experts_test
