// A model of equal blocks with a skip connection, and helpers that tests of pipelines on groups share.
#pragma once

#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/schedule/generators.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/parallel/collectives/company.h"
#include "tests/support/errors.h"

namespace weft::pipeline::testing {

using collectives::Group;
using collectives::testing::Backend;
using collectives::testing::Company;
using collectives::testing::on_ranks;
using collectives::testing::RankBody;
using rpc::ErrorKind;
using test::error_of;
using test::expect_error;

inline at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

inline const Loss squares = loss_of(
    [](const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); });

// Called in each forward of a block, with its index.
using OnForward = std::function<void(int block)>;
inline OnForward throws_in(int failing) {
  return [failing](int block) {
    if (block == failing) throw std::runtime_error("out of order");
  };
}

// A chain of blocks with a skip connection from the first to the last one.
inline LayerGraph blocks(int count, const OnForward& on_forward = nullptr) {
  LayerGraph model;
  for (int i = 0; i < count; ++i) {
    const auto build = [i, on_forward] {
      torch::nn::Sequential block(torch::nn::Linear(6, 6), torch::nn::BatchNorm1d(6));
      block->to(at::kDouble);
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : block->parameters())
        parameter.copy_(numbers(parameter.sizes(), static_cast<std::uint64_t>(i)));
      return BuiltLayer{block.ptr(), [block, i, on_forward](const Values& x) mutable {
                          if (on_forward) on_forward(i);
                          const at::Tensor sum = x.size() == 2 ? x[0] + x[1] : x[0];
                          return Values{torch::tanh(block->forward(sum))};
                        }};
    };
    std::vector<Source> inputs{i == 0 ? step_input(0) : Source{i - 1}};
    if (i > 1 && i + 1 == count) inputs.push_back(Source{0});
    model.add({"block" + std::to_string(i), build, inputs});
  }
  return model;
}

// Adds the gradients of tied parameters after a backward of the whole model, as an executor does.
inline void add_ties(const StageGraph& graph) {
  for (const Tie& tie : graph.ties()) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const StageParameter& each : tie) sum = sum + graph.parameter(each).grad();
    for (const StageParameter& each : tie) graph.parameter(each).mutable_grad() = sum.clone();
  }
}

// The first and the last block have equal weights.
inline LayerGraph tied_blocks(int count) {
  LayerGraph model = blocks(count);
  if (count > 1) model.tie({"block0.0.weight", "block" + std::to_string(count - 1) + ".0.weight"});
  return model;
}

// A step of the whole model in one process, micro-batch by micro-batch. Returns the loss.
inline double step_in_parts(const StageGraph& whole, torch::optim::Optimizer& optimizer, const at::Tensor& x,
                            const at::Tensor& y, std::int64_t microbatches) {
  optimizer.zero_grad();
  double loss = 0;
  const auto parts = std::min(microbatches, x.size(0));
  const auto xs = at::tensor_split(x, parts), ys = at::tensor_split(y, parts);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    const double share = static_cast<double>(xs[i].size(0)) / static_cast<double>(x.size(0));
    const at::Tensor part = squares(whole[0].forward({xs[i]}), {ys[i]}) * share;
    part.backward();
    loss += part.item<double>();
  }
  add_ties(whole);
  optimizer.step();
  return loss;
}

inline std::vector<int> one_block_each(int count) {
  std::vector<int> cuts;
  for (int i = 1; i < count; ++i) cuts.push_back(i);
  return cuts;
}

// The stages of a rank, of a block each.
inline StageGraph stages_on(int rank, const LayerGraph& model, const schedule::Schedule& schedule,
                            std::optional<std::uint64_t> seed = {}) {
  return cut(model, {.cuts = one_block_each(model.size()), .built = stages_of(schedule, rank), .seed = seed});
}

using Named = std::map<std::string, at::Tensor>;
inline Named named_parameters_of(const StageGraph& whole) {
  Named parameters;
  for (const auto& each : whole[0].module->named_parameters()) parameters[each.key()] = each.value();
  return parameters;
}
// The parameters of the stages that are here equal those of the whole model.
inline void expect_parameters(const StageGraph& graph, const Named& expected) {
  for (int stage = 0; stage < graph.size(); ++stage) {
    if (!graph.is_here(stage)) continue;
    for (const auto& each : graph[stage].module->named_parameters())
      EXPECT_TRUE(at::allclose(each.value(), expected.at(each.key()), 1e-10, 1e-10)) << each.key();
  }
}

inline const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);

// Two steps of the whole model on all rows.
inline StageGraph trained(const LayerGraph& model) {
  const StageGraph whole = cut(model, {});
  whole.train(false);
  torch::optim::SGD optimizer(whole.parameters(), momentum);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    squares(whole[0].forward({numbers({12, 6}, 3) + step}), {numbers({12, 6}, 4)}).backward();
    optimizer.step();
  }
  return whole;
}

// The ranks as a grid: each row is a pipeline, and each column shares stages.
struct Mesh {
  Mesh(const Group& world, int pipelines)
      : which(world.rank() / (world.size() / pipelines)),
        pipeline(world.split(which, world.rank()).get().value()),
        data(world.split(pipeline.rank(), world.rank()).get().value()) {}
  const int which;  // pipeline
  const Group pipeline, data;
};

inline at::Tensor rows_of(const at::Tensor& all, const Mesh& mesh) {
  return at::tensor_split(all, mesh.data.size())[static_cast<std::size_t>(mesh.which)];
}

// The names of the schedules with a flush, and of their tests.
inline std::vector<std::string> schedules_with_a_flush() {
  std::vector<std::string> names;
  for (const auto& generator : schedule::generators())
    if (!generator.name.starts_with("pipedream")) names.emplace_back(generator.name);
  return names;
}
inline std::string name_of_test(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

using Errors = std::vector<std::optional<rpc::Error>>;

// Runs f(group) for each rank of a new group in a separate thread. Returns the errors by rank.
inline Errors errors_on_ranks(int ranks, Backend backend, RankBody f) {
  Company company(ranks, backend);
  const std::vector<Group> groups = company.groups();
  Errors errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < groups.size(); ++rank)
    threads.emplace_back([&, rank] { errors[rank] = error_of([&] { f(groups[rank]); }); });
  for (auto& thread : threads) thread.join();
  return errors;
}
inline Errors errors_on_ranks(int ranks, RankBody f) { return errors_on_ranks(ranks, Backend::messages, f); }

// Expects that each rank has an error with this text.
inline void expect_errors(const Errors& errors, const std::string& text) {
  for (const auto& error : errors) {
    ASSERT_TRUE(error) << "expected an error with: " << text;
    EXPECT_NE(std::string(error->what()).find(text), std::string::npos) << error->what();
  }
}
inline void expect_errors(const Errors& errors, ErrorKind kind, const std::string& text = "") {
  expect_errors(errors, text);
  for (const auto& error : errors) EXPECT_EQ(error ? error->kind() : ErrorKind::internal, kind);
}

}  // namespace weft::pipeline::testing
