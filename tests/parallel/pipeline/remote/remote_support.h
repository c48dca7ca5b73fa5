// Pipelines on agents in one process: the agents, and the contents of a pipeline's stages.
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
using testing::blocks;
using testing::numbers;
using testing::one_block_each;
using testing::OnForward;
using testing::squares;

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
