// Ranks of a data parallel job as threads of one process, and helpers that their tests share.
#pragma once

#include <weft/parallel/data_parallel/distributed_data_parallel.h>

#include <torch/torch.h>

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/parallel/collectives/company.h"

namespace weft::data_parallel::testing {

using collectives::Group;
using collectives::testing::Backend;
using collectives::testing::Company;
using rpc::ErrorKind;
using test::error_of;

// Runs f(group) for each rank, in a thread each, and rethrows the first error.
template <class F>
void on_ranks(const std::vector<Group>& groups, F f) {
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        f(groups[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

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

inline std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().clone());
  return values;
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
