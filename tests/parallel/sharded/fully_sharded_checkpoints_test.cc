// Checkpoints of a FullyShardedDataParallel and its optimizer: names and values, and how training continues.

#include <set>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_checkpoints_test {
namespace {

using namespace testing;

constexpr int rows = 12;  // of all ranks together
Batch part_of(int step, int rank, int ranks) { return Batch::of_step(step, 1, rows).part(rank, ranks); }

const dist_optim::OptimizerSpec spec = torch::optim::AdamWOptions(0.05);

// Layers that share their linear, so that its parameters have several names.
struct Tied : torch::nn::Module {
  Tied() {
    for (int i = 0; i < 2; ++i) {
      const auto layer = std::make_shared<Block<Layer>>(5);
      if (i > 0) layer->linear = layer->replace_module("linear", blocks[0]->linear);
      blocks.push_back(register_module("block" + std::to_string(i), layer));
    }
    last = register_module("last", torch::nn::Linear(5, 3));
    std::uint64_t seed = 1;
    for (const at::Tensor& parameter : parameters())
      parameter.set_data(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return last(blocks[1]->forward(blocks[0]->forward(x))); }
  std::vector<std::shared_ptr<Block<Layer>>> blocks;
  torch::nn::Linear last{nullptr};
};

template <class Module>
struct Trainer {
  explicit Trainer(const Group& group, Options options = {.block = "layers.*"},
                   std::shared_ptr<Module> of = std::make_shared<Module>())
      : model(std::move(of)), fsdp(group, model, std::move(options)), optimizer(fsdp, spec) {}
  // rank, ranks: select the batches.
  void steps(int begin, int end, int rank, int ranks) {
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      const Batch part = part_of(step, rank, ranks);
      const at::Tensor output = fsdp.forward(part.data);
      loss_of(output.to(at::kDouble), part.target).backward();
      optimizer.step();
    }
  }
  void steps(int begin, int end) { steps(begin, end, fsdp.group().rank(), fsdp.group().size()); }
  SlicedState state() const { return state_of(fsdp, optimizer); }
  void load(const Checkpoints& checkpoints, std::int64_t step) {
    testing::load(fsdp, optimizer, checkpoints, step);
  }
  std::shared_ptr<Module> model;
  FullyShardedDataParallel<Module> fsdp;
  FullyShardedOptimizer optimizer;
};

// The same training in one process.
template <class Module>
struct Alone {
  explicit Alone(int steps) : leaves(dist_optim::parameters_of(module), spec) {
    for (int step = 0; step < steps; ++step) {
      module.zero_grad();
      const Batch batch = part_of(step, 0, 1);
      loss_of(module.forward(batch.data), batch.target).backward();
      dist_optim::Gradients gradients;
      for (const auto& each : dist_optim::parameters_of(module))
        gradients[gradients.size()] = each.tensor.grad();
      leaves.step(gradients);
    }
  }
  Module module;
  dist_optim::ShadowLeaves leaves;
};

template <class Module>
class SavedModules : public ::testing::Test {};
using SavedTypes = ::testing::Types<Model, Tied>;
TYPED_TEST_SUITE(SavedModules, SavedTypes);

// A checkpoint of three ranks is loaded with other blocks and on other numbers of ranks.
TYPED_TEST(SavedModules, ContinueWithOtherBlocksAndRanks) {
  const bool has_layers = std::is_same_v<TypeParam, Model>;
  const auto block = [&](const char* name) { return Options{.block = has_layers ? name : ""}; };
  const Alone<TypeParam> before(2), after(4);
  const Folder folder;
  on_ranks(3, [&](const Group& group) {
    Trainer<TypeParam> trainer(group, block("layers.*"));
    SlicedState fresh;
    trainer.optimizer.add_to(fresh);
    EXPECT_TRUE(fresh.tensors.empty()) << "it has not stepped";
    trainer.steps(0, 2);
    Checkpoints(group, folder.path).save(1, trainer.state()).get();
  });
  for (const auto& [ranks, name] : {std::pair{1, ""}, {2, "layers.1"}, {4, "layers.*"}}) {
    on_ranks(ranks, [&, ranks = ranks, name = name](const Group& group) {
      Trainer<TypeParam> trainer(group, block(name));
      const Checkpoints checkpoints(group, folder.path);
      trainer.load(checkpoints, 1);
      const dist_optim::OptimizerState expected = before.leaves.state();
      if (ranks == 1) {
        std::set<std::string> names;
        for (const auto& [key, tensor] : expected.tensors) names.insert("optimizer/" + key);
        for (const auto& [key, tensor] : trainer.state().tensors) {
          if (key.starts_with("model/")) continue;
          EXPECT_EQ(names.erase(key), 1u) << key;
          EXPECT_TRUE(at::allclose(tensor.values, expected.tensors.at(key.substr(10)).flatten(), 1e-9, 1e-12))
              << key;
        }
        EXPECT_TRUE(names.empty()) << *names.begin();
      }
      trainer.steps(2, 4);
      const auto whole = trainer.fsdp.gather();
      expect_close(values_of(*trainer.model), values_of(after.module), 1e-8);
    });
  }
}

TEST(FullyShardedStates, FollowLaterSteps) {
  const Folder folder;
  on_ranks(2, [&](const Group& group) {
    Trainer<Model> trainer(group);
    Checkpoints checkpoints(group, folder.path);
    SlicedState model;  // once
    trainer.fsdp.add_to(model);
    for (int step = 0; step < 2; ++step) {
      trainer.steps(step, step + 1);
      SlicedState state = model;
      trainer.optimizer.add_to(state);
      checkpoints.save(step, state).get();
    }
    trainer.steps(2, 3);
    for (const int step : {0, 1}) {
      trainer.load(checkpoints, step);
      const auto whole = trainer.fsdp.gather();
      expect_close(values_of(*trainer.model), values_of(Alone<Model>(step + 1).module));
    }
  });
}

TEST(FullyShardedStates, OfReplicasHaveTheOptimizer) {
  const Folder folder;
  on_ranks(4, [&](const Group& all) {
    const auto mesh = two_replicas(all);
    const Options options{.block = "layers.*", .replicas = mesh.group("replicate")};
    Checkpoints checkpoints(all, folder.path);
    {
      Trainer<Model> trainer(mesh.group("shard"), options);
      trainer.steps(0, 2, all.rank(), 4);
      checkpoints.save(1, trainer.state()).get();
    }
    Trainer<Model> trainer(mesh.group("shard"), options);
    trainer.load(checkpoints, 1);
    trainer.steps(2, 4, all.rank(), 4);
    const auto whole = trainer.fsdp.gather();
    expect_close(values_of(*trainer.model), values_of(Alone<Model>(4).module), 1e-8);
  });
}

// Forward and backward compute in bfloat16. The saved parts have the bits of the optimizer's parameters.
TEST(FullyShardedStates, KeepTheBitsOfTheOptimizersParameters) {
  const auto make = [] {
    const auto model = std::make_shared<Model>(3, at::kFloat);
    model->register_buffer("mean", at::full({3}, 0.3));
    return model;
  };
  for (const bool reshard : {true, false}) {
    const Options options{.block = "layers.*",
                          .reshard_after_forward = reshard,
                          .mixed_precision = {at::kBFloat16, at::kBFloat16, at::kBFloat16}};
    const Folder folder;
    on_ranks(2, [&](const Group& group) {
      Trainer<Model> trainer(group, options, make()), loaded(group, options, make());
      Checkpoints checkpoints(group, folder.path);
      trainer.steps(0, 2);
      const SlicedState state = trainer.state();
      checkpoints.save(1, state).get();
      for (const at::Tensor& parameter : loaded.fsdp.parameters()) parameter.detach().zero_();
      loaded.model->named_buffers()["mean"].zero_();
      loaded.load(checkpoints, 1);
      for (const auto& [name, tensor] : loaded.state().tensors) {
        const auto expected = name.ends_with("/step") ? at::kLong
                              : name == "model/mean"  ? at::kBFloat16
                                                      : at::kFloat;
        EXPECT_EQ(tensor.values.scalar_type(), expected) << name;
        EXPECT_TRUE(at::equal(tensor.values, state.tensors.at(name).values)) << name;
      }
      trainer.steps(2, 3);
      loaded.steps(2, 3);
      expect_close(loaded.fsdp.parameters(), trainer.fsdp.parameters(), 0);
    });
  }
}

// The values of the ranks differ.
TEST(FullyShardedBuffers, ACheckpointHasThoseOfOneRank) {
  struct Normalized : torch::nn::Module {
    Normalized() { norm = register_module("norm", torch::nn::BatchNorm1d(5)); }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    torch::nn::BatchNorm1d norm{nullptr};
  };
  const Folder folder;
  on_ranks(3, [&](const Group& group) {
    const auto model = std::make_shared<Normalized>();
    FullyShardedDataParallel fsdp{group, model};
    {
      const auto all = fsdp.gather();
      for (int step = 0; step <= group.rank(); ++step)
        model->norm->forward(at::full({4, 5}, group.rank() + 1.0, at::kFloat));
    }
    SlicedState state;
    fsdp.add_to(state);
    Checkpoints checkpoints(group, folder.path);
    checkpoints.save(1, state).get();
    (void)checkpoints.load(1, state);
    EXPECT_EQ(model->norm->num_batches_tracked.item<std::int64_t>(), 1);
    EXPECT_TRUE(at::allclose(model->norm->running_mean, at::full({5}, 0.1)));
    EXPECT_TRUE(at::allclose(model->norm->running_var, at::full({5}, 0.9)));
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_checkpoints_test
