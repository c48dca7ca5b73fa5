// Ranks of a data parallel job as threads of one process, and helpers that their tests share.
#pragma once

#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>

#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <vector>

#include "tests/parallel/collectives/company.h"

namespace weft::data_parallel::testing {

using collectives::Group;
using collectives::testing::Backend;
using collectives::testing::Company;
using collectives::testing::on_ranks;
using rpc::ErrorKind;
using test::error_of;
using test::expect_error;
using test::expect_text;

// A company of this number of ranks.
template <int ranks>
class OfRanks : public ::testing::Test {
 protected:
  Company company{ranks, Backend::memory};
  std::vector<Group> groups = company.groups();
};

// Three layers, of which a forward may leave out the middle one. Equal weights for equal seeds.
struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed = 1, at::ScalarType dtype = at::kDouble) {
    static std::mutex mutex;  // the ranks share the process's generator
    std::lock_guard lock(mutex);
    torch::manual_seed(seed);
    first = register_module("first", torch::nn::Linear(5, 7));
    middle = register_module("middle", torch::nn::Linear(7, 7));
    last = register_module("last", torch::nn::Linear(7, 3));
    to(dtype);
  }
  at::Tensor forward(at::Tensor x, bool all = true) {
    x = torch::tanh(first(x));
    if (all) x = torch::tanh(middle(x));
    return last(x);
  }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
};

// A Net that recomputes its middle layer in backward.
struct Checkpointed : torch::nn::Module {
  explicit Checkpointed(std::shared_ptr<Net> n) { net = register_module("net", std::move(n)); }
  at::Tensor forward(at::Tensor x) {
    const at::Tensor hidden = torch::tanh(net->first(x));
    return net->last(torch::tanh(dist_autograd::activation_checkpoint(*net->middle, hidden)));
  }
  std::shared_ptr<Net> net;
};

// The batch of a step for all ranks together. part() returns that of one rank.
struct Batch {
  at::Tensor data, target;

  static Batch of_step(int step, int ranks, std::int64_t each = 4) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
    const auto rows = each * ranks;
    return {at::randn({rows, 5}, generator, at::kDouble), at::randn({rows, 3}, generator, at::kDouble)};
  }
  Batch part(int rank, int ranks) const { return {data.chunk(ranks)[rank], target.chunk(ranks)[rank]}; }
};

// Runs a step of the optimizer on the gradients of a batch.
void train_step(torch::optim::Optimizer& optimizer, auto& forward, const Batch& batch) {
  optimizer.zero_grad();
  torch::mse_loss(forward.forward(batch.data), batch.target).backward();
  optimizer.step();
}

inline std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
}

inline Options with_static_graph(bool is_static) {
  return {.bucket_bytes = {200}, .overlap = Overlap::group, .static_graph = is_static};
}
inline const Options several_buckets = with_static_graph(false);

// Copies; undefined for parameters without a gradient.
inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.clone() : gradient);
  }
  return gradients;
}

// The means of the modules' gradients. Undefined if no module has a gradient.
template <class Module>
std::vector<at::Tensor> mean_gradients(const std::vector<std::shared_ptr<Module>>& modules) {
  std::vector<at::Tensor> means;
  for (const auto& module : modules) {
    const auto gradients = gradients_of(*module);
    means.resize(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const at::Tensor part = gradients[i] / static_cast<double>(modules.size());
      means[i] = means[i].defined() ? means[i] + part : part;
    }
  }
  return means;
}

// Returns the means of the gradients that f(net, rank) computes for the Net of each rank.
inline std::vector<at::Tensor> means_of(int ranks, const std::function<void(Net&, int)>& f) {
  std::vector<std::shared_ptr<Net>> nets;
  for (int rank = 0; rank < ranks; ++rank) {
    nets.push_back(std::make_shared<Net>());
    f(*nets.back(), rank);
  }
  return mean_gradients(nets);
}

inline void expect_gradients(const torch::nn::Module& module, const std::vector<at::Tensor>& expected) {
  const auto gradients = gradients_of(module);
  ASSERT_EQ(gradients.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(gradients[i].defined(), expected[i].defined()) << "parameter " << i;
    if (expected[i].defined()) {
      EXPECT_TRUE(at::allclose(gradients[i], expected[i], 1e-12, 1e-12)) << "parameter " << i;
    }
  }
}

inline void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                         double tolerance = 1e-10) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::allclose(a[i], b[i], tolerance, tolerance)) << "tensor " << i << "\n"
                                                                << a[i] << "\n"
                                                                << b[i];
}

}  // namespace weft::data_parallel::testing
