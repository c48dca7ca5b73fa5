// load_weights() and save_weights(): names, errors on all ranks, and which rank reads and writes what.
// split_modules_test.cc has the meshes.
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/sharded/sharded_optimizer.h>

#include <atomic>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::weights_test {
namespace {

using namespace testing;
using test::message_of;
using weights::Slice;

std::map<std::string, at::Tensor> numbered() {
  return {{"a", at::arange(24, at::kFloat).view({4, 6})},
          {"b", at::arange(5, at::kFloat) + 100},
          {"scalar", at::scalar_tensor(7.5)},
          {"small", at::arange(2, at::kLong)}};
}

void write(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors) {
  const auto sink = weights::create_sink(path);
  sink->declare(weights::forms_of(tensors));
  for (const auto& [name, tensor] : tensors) sink->write(name, tensor);
  sink->finish();
}

class WeightsOfRanks : public ::testing::Test {
 protected:
  // Expects that f(group) fails on each rank with this text.
  template <class F>
  static void expect_failure(int ranks, const std::string& text, F f) {
    std::atomic<int> failed = 0;
    on_ranks(ranks, [&](const Group& group) {
      expect_contains(message_of([&] { f(group); }), text, group.rank());
      ++failed;
    });
    EXPECT_EQ(failed, ranks);
  }
  static void expect_contains(const std::string& message, const std::string& text, int rank) {
    EXPECT_NE(message.find(text), std::string::npos) << "rank " << rank << ": " << message;
  }

  Folder folder;
  const std::filesystem::path file = folder.path / "model.safetensors";
};

// Counts the elements that are read.
class CountingSource final : public weights::Source {
 public:
  CountingSource(std::shared_ptr<weights::Source> of, std::map<std::string, std::atomic<std::int64_t>>& count)
      : of_(std::move(of)), count_(count) {
    tensors_ = of_->tensors();
    description_ = of_->description();
  }
  at::Tensor view(const std::string& name) const override { return of_->view(name); }
  void read(const std::string& name, const at::Tensor& to, const Slice& slice, bool convert) const override {
    count_.at(name) += to.numel();
    of_->read(name, to, slice, convert);
  }

 private:
  const std::shared_ptr<weights::Source> of_;
  std::map<std::string, std::atomic<std::int64_t>>& count_;
};

TEST_F(WeightsOfRanks, EachElementIsReadOnceByFourShards) {
  const Model whole(3, at::kFloat);
  weights::save(whole, *weights::create_sink(file));
  std::map<std::string, std::atomic<std::int64_t>> count;
  const auto opened = weights::open_source(file);
  for (const auto& [name, form] : opened->tensors()) count[name] = 0;
  on_ranks(4, [&](const Group& group) {
    const auto model = std::make_shared<Model>(3, at::kFloat);
    for (const at::Tensor& parameter : model->parameters()) parameter.detach().zero_();
    FullyShardedDataParallel<Model> fsdp(group, model, {.block = "layers.*"});
    SlicedState state;
    fsdp.add_to(state, "");
    const CountingSource source(weights::open_source(file), count);
    const auto report = load_weights(group, state, source);
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    const auto gathered = fsdp.gather();
    const auto expected = whole.named_parameters();
    for (const auto& each : model->named_parameters())
      expect_same(each.value(), expected[each.key()].detach(), each.key());
  });
  for (const auto& each : whole.named_parameters())
    EXPECT_EQ(count.at(each.key()), each.value().numel()) << each.key();
}

// Each rank has some of the tensors, like the stages of a pipeline.
TEST_F(WeightsOfRanks, StagesHaveTheModelTogether) {
  const auto whole = numbered();
  write(file, whole);
  const auto of_rank = [&](int rank) {
    std::map<std::string, at::Tensor> own;
    int number = 0;
    for (const auto& [name, tensor] : whole)
      if (number++ % 3 == rank) own.emplace(name, tensor);
    return blank(state_of(own, even_split(0, 1)));
  };
  on_ranks(3, [&](const Group& group) {
    SlicedState state = of_rank(group.rank());
    for (auto& [name, tensor] : state.tensors)
      if (whole.at(name).dim() == 0) tensor.sizes = {};
    load_weights(group, state, file);
    expect_loaded(state, whole);
    state.notes["rank"] = std::to_string(group.rank());
    save_weights(group, state, folder.path / "again.pt", {.dtype = at::kDouble});
    save_weights(group, state, folder.path / "again.safetensors");
  });
  for (const char* name : {"again.pt", "again.safetensors"}) {
    const auto again = weights::open_source(folder.path / name);
    ASSERT_EQ(again->tensors().size(), whole.size());
    for (const auto& [tensor, values] : whole)
      EXPECT_TRUE(at::equal(again->view(tensor).to(values.scalar_type()), values)) << tensor;
  }
  EXPECT_EQ(weights::open_source(folder.path / "again.pt")->form("a").dtype, at::kDouble);
  EXPECT_EQ(weights::open_source(folder.path / "again.safetensors")->notes().at("rank"), "0");
}

TEST_F(WeightsOfRanks, WhatDoesNotFitIsAnErrorOnAllRanks) {
  auto tensors = numbered();
  write(file, tensors);
  const auto load_other = [&](std::map<std::string, at::Tensor> other, const std::string& text,
                              const weights::LoadOptions& options = {}) {
    expect_failure(2, text, [&](const Group& group) {
      SlicedState state = state_of(other, even_split(group.rank(), 2));
      const SlicedState before = state;
      try {
        load_weights(group, state, file, options);
      } catch (...) {
        for (const auto& [name, tensor] : before.tensors)
          expect_same(state.tensors.at(name).values, tensor.values, name);
        throw;
      }
    });
  };
  auto more = tensors;
  more["other"] = at::zeros({2});
  load_other(more, "missing in the file: other");
  auto fewer = tensors;
  fewer.erase("b");
  load_other(fewer, "unexpected, not in the module: b");
  auto shape = tensors;
  shape["a"] = at::zeros({6, 4});
  load_other(shape, "a: float32 [4, 6] in the file, float32 [6, 4] in the module");
  auto dtype = tensors;
  dtype["a"] = at::zeros({4, 6}, at::kDouble);
  load_other(dtype, "of another dtype (LoadOptions::convert): a");
  on_ranks(2, [&](const Group& group) {
    SlicedState state = state_of(fewer, even_split(group.rank(), 2));
    state.tensors.erase("small");
    const auto report = load_weights(group, state, file, {.strict = false});
    EXPECT_EQ(report.unexpected, (std::vector<std::string>{"b", "small"}));
    EXPECT_TRUE(report.missing.empty());
  });
  expect_failure(2, "no-such-file", [&](const Group& group) {
    load_weights(group, state_of(tensors, even_split(group.rank(), 2)),
                 group.rank() == 1 ? folder.path / "no-such-file.safetensors" : file);
  });
}

TEST_F(WeightsOfRanks, AllRanksHaveOneFormOfATensor) {
  const auto tensors = numbered();
  write(file, tensors);
  for (const at::Tensor& other : {at::zeros({6, 4}), at::zeros({4, 6}, at::kDouble)})
    expect_failure(2, "on rank 1, on a lower rank it is float32 [4, 6]", [&](const Group& group) {
      auto own = tensors;
      if (group.rank() == 1) own["a"] = other;
      load_weights(group, state_of(own, even_split(group.rank(), 2)), file, {.convert = true});
    });
}

// The file has another of its names than the rank knows.
TEST_F(WeightsOfRanks, AnotherRankKnowsTheNameOfTheFile) {
  write(file, {{"b", at::arange(6, at::kFloat)}, {"none", at::empty({0, 3})}});
  on_ranks(2, [&](const Group& group) {
    const std::map<std::string, at::Tensor> expected{{"a", at::arange(6, at::kFloat)}};
    SlicedState state = blank(state_of(expected, even_split(group.rank(), 2)));
    if (group.rank() == 0) state.aliases = {{"b", "a"}};
    load_weights(group, state, file);
    expect_loaded(state, expected);
  });
}

TEST_F(WeightsOfRanks, AnErrorOfOneRankLeavesTheEarlierFile) {
  const auto tensors = numbered();
  write(file, tensors);
  const auto state = [&](int rank) { return state_of(tensors, even_split(rank, 2)); };
  expect_failure(2, "the test says so", [&](const Group& group) {
    const weights::NameMap names = [&](const std::string& name) {
      if (group.rank() == 1) throw rpc::Error(ErrorKind::invalid_argument, "the test says so");
      return name;
    };
    save_weights(group, state(group.rank()), file, {.names = names});
  });
  expect_failure(2, "no rank has element 12", [&](const Group& group) {
    SlicedState own = state(group.rank());
    if (group.rank() == 1) own.tensors.erase("a");
    save_weights(group, own, file);
  });
  expect_failure(2, "expected the same on all ranks", [&](const Group& group) {
    SlicedState own = state(group.rank());
    if (group.rank() == 1) own.tensors.at("a").values = own.tensors.at("a").values.to(at::kDouble);
    save_weights(group, own, file);
  });
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
  const auto source = weights::open_source(file);
  for (const auto& [name, values] : tensors) expect_same(source->view(name), values, name);
}

// A module under two names.
struct Tied : torch::nn::Module {
  Tied() : first(torch::nn::LinearOptions(3, 3)), second(first) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first, second;
};

TEST_F(WeightsOfRanks, ATiedParameterHasAllItsNames) {
  const at::Tensor weight = at::arange(9, at::kFloat).view({3, 3}), bias = at::arange(3, at::kFloat);
  const auto load_and_save = [&](const Group& group, bool sharded) {
    const auto model = std::make_shared<Tied>();
    std::optional<FullyShardedDataParallel<Tied>> fsdp;
    if (sharded) fsdp.emplace(group, model);
    SlicedState state;
    sharded ? fsdp->add_to(state, "") : add_module(state, *model, "");
    load_weights(group, state, file);
    const auto expect_loaded = [&] { expect_same(model->second->weight.detach(), weight, "weight"); };
    if (sharded) {
      const auto gathered = fsdp->gather();
      expect_loaded();
    } else {
      expect_loaded();
    }
    save_weights(group, state, folder.path / "again.pt");
  };
  for (const bool sharded : {true, false}) {
    for (const char* name : {"first.weight", "second.weight"}) {
      write(file, {{name, weight}, {"second.bias", bias}});
      on_ranks(2, [&](const Group& group) { load_and_save(group, sharded); });
      const auto again = weights::open_source(folder.path / "again.pt");
      EXPECT_EQ(again->tensors().size(), 4U);
      EXPECT_TRUE(again->form("first.weight").is_same_as(again->form("second.weight")));
    }
    write(file, {{"first.weight", weight}, {"second.weight", weight + 1}, {"first.bias", bias}});
    expect_failure(2, "tied in the module, with other values in the file",
                   [&](const Group& group) { load_and_save(group, sharded); });
  }
}

// --- States of optimizers ---

// A training run with AdamW, whose module or optimizer is split. The head's second layer is trained in odd
// steps only, so that its state has another count.
template <class Wrapped, class Optimizer>
struct Training {
  explicit Training(const Group& group)
      : module(group, std::make_shared<Model>()),
        optimizer(
            module,
            dist_optim::OptimizerSpec(torch::optim::AdamWOptions(0.02)).with_group("head", {{"lr", 0.01}})) {}
  double step(int number) {
    const Group& group = module.group();
    const Batch part = Batch::of_step(number, 1, 12).part(group.rank(), group.size());
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(module.forward(part.data, number % 2 == 1), part.target);
    loss.backward();
    optimizer.step();
    optimizer.set_learning_rate(0.9 * optimizer.learning_rate("head"), "head");
    const at::Tensor mean = loss.detach().clone();
    group.all_reduce(mean, collectives::ReduceOp::avg).get();
    return mean.item<double>();
  }
  void add_module_to(SlicedState& state) const {
    if constexpr (std::is_base_of_v<ShardedModule, Wrapped>)
      module.add_to(state);
    else
      add_module(state, module.module());
  }
  void save(const std::filesystem::path& to) const {
    SlicedState state;
    add_module_to(state);
    optimizer.add_to(state);
    save_weights(module.group(), state, to);
  }
  void load(const std::filesystem::path& from) {
    const auto source = weights::open_source(from);
    std::vector<std::string> names;
    for (const auto& [name, form] : source->tensors()) names.push_back(name);
    SlicedState state;
    add_module_to(state);
    optimizer.add_wanted_to(state, names);
    load_weights(module.group(), state, *source);
    state.notes = source->notes();
    optimizer.take_from(state);
  }
  Wrapped module;
  Optimizer optimizer;
};

template <class Run>
class SavedOptimizers : public ::testing::Test {};
using Runs = ::testing::Types<Training<FullyShardedDataParallel<Model>, FullyShardedOptimizer>,
                              Training<data_parallel::DistributedDataParallel<Model>, ShardedOptimizer>>;
TYPED_TEST_SUITE(SavedOptimizers, Runs);

// Two ranks save one file. Other numbers of ranks load it, write the same file, and continue.
TYPED_TEST(SavedOptimizers, ContinueFromOneFileOnAnyNumberOfRanks) {
  constexpr int saved = 3, steps = 6;
  const Folder folder;
  const auto file = folder.path / "run.safetensors";
  std::vector<double> losses;
  on_ranks(2, [&](const Group& group) {
    TypeParam run(group);
    for (int number = 0; number < steps; ++number) {
      if (number == saved) run.save(file);
      const double loss = run.step(number);
      if (group.rank() == 0) losses.push_back(loss);
    }
  });
  const auto expected = weights::open_source(file);
  EXPECT_TRUE(expected->tensors().contains("optimizer/layers.1.linear.weight/exp_avg_sq"));
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const auto again = folder.path / "again.safetensors";
    on_ranks(ranks, [&, ranks = ranks](const Group& group) {
      TypeParam run(group);
      run.load(file);
      run.save(again);
      for (int number = saved; number < steps; ++number)
        EXPECT_NEAR(run.step(number), losses[static_cast<std::size_t>(number)], ranks == 2 ? 0 : 1e-10)
            << "step " << number;
    });
    const auto actual = weights::open_source(again);
    EXPECT_EQ(actual->notes(), expected->notes());
    ASSERT_EQ(actual->tensors().size(), expected->tensors().size());
    for (const auto& [name, form] : expected->tensors())
      expect_same(actual->view(name), expected->view(name), name);
  }
}

}  // namespace
}  // namespace weft::sharded::weights_test
