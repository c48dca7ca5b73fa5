// Pipelines on agents in one process: a model of blocks, the agents, and the contents of a pipeline's stages.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/parallel/pipeline/remote/pipeline.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/in_process.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "tests/parallel/pipeline/blocks.h"
#include "tests/support/cluster.h"

namespace weft::pipeline::remote_support {

using rpc::ErrorKind;
using test::error_of;
using test::got;
using testing::numbers;
using testing::one_block_each;

inline at::Tensor squares(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// Called in each forward. Used to inject faults.
using OnForward = std::function<void(int stage)>;

struct Block : torch::nn::Module {
  Block(int number, OnForward on) : stage(number), on_forward(std::move(on)) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    linear->weight.copy_(numbers({6, 6}, static_cast<std::uint64_t>(number)));
    linear->bias.copy_(numbers({6}, static_cast<std::uint64_t>(number) + 100));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (on_forward) on_forward(stage);
    return torch::tanh(norm(linear(x)));
  }
  int stage;
  OnForward on_forward;
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// `count` blocks with a skip connection from the first to the last one.
inline LayerGraph blocks(int count, const OnForward& on_forward = nullptr) {
  LayerGraph model;
  for (int i = 0; i < count; ++i) {
    const auto make = [i, on_forward] { return std::make_shared<Block>(i, on_forward); };
    if (i + 1 < count || i < 2) {
      model.add("block" + std::to_string(i), make);
      continue;
    }
    const auto build = [make] {
      const auto block = make();
      return BuiltLayer{block,
                        [&of = *block](const Values& x) { return Values{of.forward(x.at(0) + x.at(1))}; }};
    };
    model.add({"block" + std::to_string(i), build, {Source{i - 1}, Source{0}}});
  }
  return model;
}

class Agents {
 public:
  Agents(int workers, const Model& model) {
    at::set_num_threads(1);
    for (int i = 0; i <= workers; ++i) {
      rpc::AgentOptions options;
      options.name = i == 0 ? "driver" : "worker" + std::to_string(i);
      options.listen = {"inproc://" + options.name};
      options.in_process = network_;
      options.handler_threads = 3;
      options.log = [](const rpc::LogRecord&) {};
      agents_.push_back(std::make_unique<rpc::Agent>(std::move(options), layers(model)));
    }
    for (const auto& a : agents_)
      for (const auto& b : agents_) {
        a->core()->routes().to_name(b->name(), {"inproc://" + b->name()});
        a->peer(b->name()).ready().get();
      }
  }
  rpc::Agent& driver() { return *agents_[0]; }
  void kill(std::size_t worker) { agents_[worker]->shut_down(); }
  std::uint64_t stages_of(std::size_t worker) {
    return rpc::stats(*agents_[worker]).layers.at("pipeline.workers");
  }
  std::vector<rpc::Peer> workers() {
    std::vector<rpc::Peer> all;
    for (std::size_t i = 1; i < agents_.size(); ++i) all.push_back(driver().peer(agents_[i]->name()));
    return all;
  }

 private:
  std::shared_ptr<rpc::InProcess> network_ = std::make_shared<rpc::InProcess>();
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

// Parameters and buffers, by names that do not depend on the cuts.
using State = std::map<std::string, at::Tensor>;
inline State state_of(const Pipeline& pipeline) {
  State all;
  for (const auto& stage : pipeline.stages())
    for (const auto& [name, tensor] : test::got(dist_autograd::RemoteModule(stage).state_dict()))
      all[name] = tensor;
  return all;
}
inline State state_of(const torch::nn::Module& module) {
  State all;
  for (const auto& each : module.named_parameters()) all[each.key()] = each.value().detach();
  for (const auto& each : module.named_buffers()) all[each.key()] = each.value();
  return all;
}

inline void expect_close(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(at::allclose(a, b, 1e-10, 1e-10)) << a << "\n" << b;
}
inline void expect_close(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(b.contains(name));
    expect_close(tensor, b.at(name));
  }
}

}  // namespace weft::pipeline::remote_support
