// Agents of one process with small modules, for tests of DistributedOptimizer. Values are computed and not
// drawn, because all agents would share one random generator.
#pragma once

#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/wait.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/between_hosts.h"

namespace weft::dist_optim::step_support {

using test::got;  // with a timeout: if a step is never decided, its test fails

inline at::Tensor numbers(at::IntArrayRef shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return at::sin(at::arange(count, at::kDouble) * 0.7 + phase).reshape(shape);
}

template <class Module>
void fill(Module& module, double phase) {
  at::NoGradGuard no_grad;
  module.to(at::kDouble);
  for (auto& parameter : module.parameters()) parameter.copy_(numbers(parameter.sizes(), phase += 1));
}

inline std::vector<at::Tensor> values_of_module(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().clone());
  return all;
}

struct Layer : torch::nn::Module {
  explicit Layer(std::int64_t seed) {
    linear = register_module("linear", torch::nn::Linear(4, 4));
    fill(*this, static_cast<double>(seed));
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor forward(at::Tensor input) { return linear(input).tanh(); }
  std::vector<at::Tensor> values() { return values_of_module(*this); }
  using Service =
      rpc::Service<"test.step_layer", rpc::Constructor<std::int64_t>, rpc::Method<"forward", &Layer::forward>,
                   rpc::Method<"values", &Layer::values>>;
};

struct Table : torch::nn::Module {
  explicit Table(std::int64_t seed) {
    rows = register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
    fill(*this, static_cast<double>(seed));
  }
  torch::nn::Embedding rows{nullptr};
  at::Tensor look_up(at::Tensor ids) { return rows(ids); }
  std::vector<at::Tensor> values() { return values_of_module(*this); }
  using Service =
      rpc::Service<"test.step_table", rpc::Constructor<std::int64_t>, rpc::Method<"look_up", &Table::look_up>,
                   rpc::Method<"values", &Table::values>>;
};

class Agents {
 public:
  explicit Agents(std::size_t count) {
    at::set_num_threads(1);
    for (std::size_t i = 0; i < count; ++i) {
      rpc::AgentOptions options;
      options.name = "worker" + std::to_string(i);
      test::place(options, network_);
      options.handler_threads = 3;
      options.log = [](const rpc::LogRecord&) {};
      agents_.push_back(std::make_unique<rpc::Agent>(std::move(options), layers()));
      agents_.back()->allow_create<Layer>();
      agents_.back()->allow_create<Table>();
    }
    test::acquaint(agents_);
  }
  rpc::Agent& operator[](std::size_t i) { return *agents_[i]; }
  rpc::Peer peer(std::size_t from, std::size_t to) { return agents_[from]->peer(agents_[to]->name()); }
  void kill(std::size_t i) { agents_[i]->shut_down(); }
  void destroy(std::size_t i) { agents_[i].reset(); }

 private:
  std::shared_ptr<rpc::InProcess> network_ = std::make_shared<rpc::InProcess>();
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

inline void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_LE((got[i] - want[i]).abs().max().item<double>(), 1e-12 * want[i].abs().max().item<double>()) << i;
}

// Returns the error of a step, which must fail with a StepError.
template <class Result>
StepError step_error(rpc::Future<Result> step) {
  try {
    got(std::move(step));
  } catch (const StepError& error) {
    return error;
  }
  ADD_FAILURE() << "the step did not fail";
  return {rpc::ErrorKind::internal, "", {}, {}, {}};
}

}  // namespace weft::dist_optim::step_support
