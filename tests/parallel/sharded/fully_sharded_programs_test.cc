// FullyShardedDataParallel with the forms that modules, optimizers and programs have.
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/sharded/checkpoint/checkpoints.h>
#include <weft/parallel/sharded/checkpoint/export_tensors.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/parallel/sharded/checkpoint/states.h"
#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_programs_test {
namespace {

using collectives::testing::Company;
using data_parallel::testing::Batch;
using data_parallel::testing::expect_close;
using data_parallel::testing::on_ranks;
using rpc::ErrorKind;
using testing::Folder;
using testing::Layer;
using testing::loss_of;
using testing::Model;
using testing::values_of;

constexpr int ranks = 2;

// Whether the gradients of this rank's slices are those elements of the gradients by name.
void expect_gradients(const ShardedModule& fsdp, const torch::nn::Module& expected,
                      double tolerance = 1e-10) {
  const auto parameters = expected.named_parameters();
  for (const ParameterSlice& slice : fsdp.slices()) {
    const at::Tensor& whole = parameters[slice.parameter].grad();
    const at::Tensor& own = slice.leaf.tensor.grad();
    ASSERT_EQ(whole.defined(), own.defined()) << slice.leaf.name;
    if (!whole.defined()) continue;
    EXPECT_TRUE(at::allclose(own, whole.flatten().slice(0, slice.begin, slice.end).to(own.dtype()), tolerance,
                             tolerance))
        << slice.leaf.name;
  }
}

// Runs loss(module, batch) with all ranks' batches in one process, and sharded, and compares the gradients.
template <class Make, class Loss>
void expect_equal_gradients(Make make, Loss loss, const Options& options = {}) {
  const auto whole = make();
  const Batch batch = Batch::of_step(0, ranks);
  ((loss(*whole, batch.part(0, ranks)) + loss(*whole, batch.part(1, ranks))) / ranks).backward();
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    FullyShardedDataParallel fsdp{group, make(), options};
    for (int i = 0; i < 2; ++i) {  // the second forward is predicted
      for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
      loss(fsdp, batch.part(group.rank(), ranks)).backward();
      expect_gradients(fsdp, *whole);
    }
  });
}

std::shared_ptr<Block<Layer>> layer_of(std::uint64_t seed) {
  auto layer = std::make_shared<Block<Layer>>(5);
  for (const at::Tensor& parameter : layer->parameters())
    parameter.set_data(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kDouble));
  return layer;
}

// --- Forms of modules ---

struct Pair {
  at::Tensor first;
  std::vector<at::Tensor> others;
};
WEFT_CODEC(Pair, first, others)

struct TwoOutputs : torch::nn::Module {
  TwoOutputs() {
    a = register_module("a", layer_of(10));
    b = register_module("b", layer_of(20));
    unused = register_module("unused", layer_of(30));
  }
  Pair forward(const Pair& x, bool with_unused = false) {
    const at::Tensor first = a->forward(x.first);
    if (with_unused) return {first, {unused->forward(first)}};
    return {first, {b->forward(x.others.at(0))}};
  }
  std::shared_ptr<Block<Layer>> a, b, unused;
};

TEST(FullyShardedModules, MayTakeAndGiveStructs) {
  expect_equal_gradients([] { return std::make_shared<TwoOutputs>(); },
                         [](auto& module, const Batch& part) {
                           const Pair out = module.forward(Pair{part.data, {part.data * 2}});
                           return out.first.square().mean() + out.others[0].square().mean();
                         });
}

TEST(FullyShardedModules, MayGiveOutputsThatTheLossDoesNotUse) {
  expect_equal_gradients([] { return std::make_shared<TwoOutputs>(); },
                         [](auto& module, const Batch& part) {
                           return module.forward(Pair{part.data, {part.data * 2}}).others[0].square().mean();
                         });
}

TEST(FullyShardedModules, MayRunOtherBlocksInEachIteration) {
  const auto loss = [](auto& module, int step, const Batch& part) {
    const Pair out = module.forward(Pair{part.data, {part.data * 2}}, step % 2 == 1);
    return out.first.square().mean() + out.others[0].square().mean();
  };
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<TwoOutputs>()};
    for (int step = 0; step < 4; ++step) {
      TwoOutputs whole;
      const Batch batch = Batch::of_step(step, ranks);
      ((loss(whole, step, batch.part(0, ranks)) + loss(whole, step, batch.part(1, ranks))) / ranks)
          .backward();
      for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
      loss(fsdp, step, batch.part(group.rank(), ranks)).backward();
      expect_gradients(fsdp, whole);
    }
  });
}

// A block without parameters, one with a parameter without dimensions, and types that differ within a block.
struct Odd : torch::nn::Module {
  struct Scale : torch::nn::Module {
    Scale() {
      factor = register_parameter("factor", at::scalar_tensor(1.5, at::kDouble));
      narrow = register_parameter("narrow", at::linspace(0.5, 1, 5, at::kFloat));
      index = register_parameter("index", at::arange(4, -1, -1), /*requires_grad=*/false);
      nothing = register_parameter("nothing", at::empty({0, 3}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) {
      return (x * factor * narrow.to(at::kDouble)).index_select(1, index) + nothing.sum();
    }
    at::Tensor factor, narrow, index, nothing;
  };
  Odd() {
    layers->push_back(std::make_shared<Scale>());
    layers->push_back(torch::nn::Tanh());
    layers->push_back(std::make_shared<Scale>());
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

TEST(FullyShardedModules, MayHaveParametersOfAnyKind) {
  expect_equal_gradients(
      [] { return std::make_shared<Odd>(); },
      [](auto& module, const Batch& part) { return module.forward(part.data).square().mean(); },
      {.block = "layers.*"});
}

// --- Forms of programs ---

TEST(FullyShardedUses, AnEvaluationIsThatOfTheWholeModule) {
  Model whole;
  const Batch batch = Batch::of_step(0, ranks);
  const at::Tensor expected = whole.forward(batch.data).detach();
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    for (const bool reshard : {false, true}) {
      const auto model = std::make_shared<Model>();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
      for (int i = 0; i < 2; ++i) {
        {
          const c10::InferenceMode guard;
          EXPECT_TRUE(at::equal(fsdp.forward(batch.data), expected));
        }
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(fsdp.forward(batch.data), expected));
        const auto all = fsdp.gather();
        EXPECT_TRUE(at::equal(model->forward(batch.data), expected)) << "also around it";
      }
    }
  });
}

TEST(FullyShardedUses, ClipReturnsTheNormOfAllRanks) {
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    for (const double type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
      Model whole;
      const Batch batch = Batch::of_step(0, ranks);
      loss_of(whole.forward(batch.data), batch.target).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(whole.parameters(), 0.01, type);
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
      EXPECT_EQ(fsdp.clip_grad_norm(0.01, type), 0) << "no gradients";
      const Batch part = batch.part(group.rank(), ranks);
      loss_of(fsdp.forward(part.data), part.target).backward();
      EXPECT_NEAR(fsdp.clip_grad_norm(0.01, type), norm, 1e-10);
      expect_gradients(fsdp, whole);
    }
  });
}

TEST(FullyShardedUses, ReplicasBeginWithTheValuesOfRankZero) {
  Company company(4);
  on_ranks(company.groups(), [&](const collectives::Group& all) {
    const std::vector<collectives::DeviceMesh::Dimension> grid{{"replicate", 2}, {"shard", 2}};
    const auto mesh = collectives::DeviceMesh::create(all, grid).get();
    const auto model = std::make_shared<Model>();
    if (all.rank() != 0)
      for (at::Tensor& parameter : model->parameters()) parameter.detach().fill_(all.rank());
    FullyShardedDataParallel fsdp{mesh.group("shard"), model, {.replicas = mesh.group("replicate")}};
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values_of(Model()), 0);
  });
}

TEST(FullyShardedUses, OptimizersMayHaveGroupsOfParameters) {
  const auto spec = dist_optim::OptimizerSpec(torch::optim::AdamWOptions(0.01))
                        .with_group("layers.1", {{"lr", 0.1}, {"weight_decay", 0}});
  Model whole;
  dist_optim::ShadowLeaves expected(dist_optim::parameters_of(whole), spec);
  for (int step = 0; step < 3; ++step) {
    whole.zero_grad();
    const Batch batch = Batch::of_step(step, ranks);
    loss_of(whole.forward(batch.data), batch.target).backward();
    dist_optim::Gradients gradients;
    for (const auto& each : dist_optim::parameters_of(whole))
      gradients[gradients.size()] = each.tensor.grad();
    expected.step(gradients);
  }
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, spec);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Batch part = Batch::of_step(step, ranks).part(group.rank(), ranks);
      loss_of(fsdp.forward(part.data), part.target).backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.learning_rate("layers.1"), 0.1);
    const auto all = fsdp.gather();
    expect_close(values_of(*model), values_of(whole));
  });
}

TEST(FullyShardedUses, SeveralOptimizersStepPartsOfTheParameters) {
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
    std::vector<at::Tensor> stem, others;
    for (const ParameterSlice& slice : fsdp.slices())
      (slice.parameter.starts_with("stem") ? stem : others).push_back(slice.leaf.tensor);
    torch::optim::SGD first(stem, 0.1), second(others, 0.1);
    const Batch part = Batch::of_step(0, ranks).part(group.rank(), ranks);
    loss_of(fsdp.forward(part.data), part.target).backward();
    first.zero_grad();
    for (const at::Tensor& each : stem) EXPECT_FALSE(each.grad().defined());
    for (const at::Tensor& each : others) EXPECT_TRUE(each.grad().defined());
    second.step();
  });
}

TEST(FullyShardedUses, ParametersMayBeFrozenLater) {
  const auto freeze = [](Model& model) { model.stem->bias.requires_grad_(false); };
  Model whole;
  freeze(whole);
  const Batch batch = Batch::of_step(1, ranks);
  loss_of(whole.forward(batch.data), batch.target).backward();
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    freeze(*model);
    const Batch part = batch.part(group.rank(), ranks);
    loss_of(fsdp.forward(part.data), part.target).backward();
    expect_gradients(fsdp, whole);
  });
}

TEST(FullyShardedUses, MayReduceInANarrowType) {
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const Batch batch = Batch::of_step(0, ranks);
    Model whole(3, at::kFloat);
    loss_of(whole.forward(batch.data.to(at::kFloat)), batch.target.to(at::kFloat)).backward();
    FullyShardedDataParallel fsdp{group,
                                  std::make_shared<Model>(3, at::kFloat),
                                  {.block = "layers.*", .mixed_precision = {.reduction = at::kBFloat16}}};
    const Batch part = batch.part(group.rank(), ranks);
    loss_of(fsdp.forward(part.data.to(at::kFloat)), part.target.to(at::kFloat)).backward();
    expect_gradients(fsdp, whole, 1e-2);
    bool differs = false;
    for (const ParameterSlice& slice : fsdp.slices()) {
      EXPECT_EQ(slice.leaf.tensor.grad().scalar_type(), at::kFloat);
      differs |= !at::equal(
          slice.leaf.tensor.grad(),
          whole.named_parameters()[slice.parameter].grad().flatten().slice(0, slice.begin, slice.end));
    }
    EXPECT_TRUE(differs) << "the gradients are rounded";
  });
}

TEST(FullyShardedUses, BuffersMayBeOfANarrowType) {
  struct Normalized : torch::nn::Module {
    Normalized() { norm = register_module("norm", torch::nn::BatchNorm1d(5)); }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    torch::nn::BatchNorm1d norm{nullptr};
  };
  Company company(ranks);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const auto model = std::make_shared<Normalized>();
    FullyShardedDataParallel fsdp{
        group, model, {.mixed_precision = {.parameters = at::kBFloat16, .buffers = at::kBFloat16}}};
    EXPECT_EQ(model->norm->running_mean.scalar_type(), at::kBFloat16);
    EXPECT_EQ(fsdp.forward(at::randn({4, 5})).scalar_type(), at::kBFloat16);
    EXPECT_TRUE(model->norm->running_mean.abs().sum().item<double>() > 0);
  });
}

// --- Refusals ---

TEST(FullyShardedMisuse, IsNamed) {
  Company company(1);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const auto expect_refused = [](ErrorKind kind, const std::string& text, const std::function<void()>& f) {
      const auto error = test::error_of(f);
      ASSERT_TRUE(error) << text;
      EXPECT_EQ(error->kind(), kind) << error->what();
      EXPECT_NE(std::string(error->what()).find(text), std::string::npos) << error->what();
    };
    const auto model = std::make_shared<Model>();
    model->stem->bias.requires_grad_(false);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch batch = Batch::of_step(0, 1);
    expect_refused(ErrorKind::invalid_argument, "stem.weight is split over ranks already",
                   [&] { FullyShardedDataParallel(group, model); });
    expect_refused(ErrorKind::failed_precondition, "the block head runs outside",
                   [&] { model->head->forward(batch.data, true); });
    const at::Tensor output = fsdp.forward(batch.data);
    model->stem->weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      expect_refused(ErrorKind::failed_precondition, "gather() within forward or backward",
                     [&] { (void)fsdp.gather(); });
      return gradient;
    });
    loss_of(output, batch.target).backward();
    model->stem->bias.requires_grad_(true);
    expect_refused(ErrorKind::failed_precondition, "stem.bias requires grad now",
                   [&] { fsdp.forward(batch.data); });
  });
}

// --- Checkpoints ---

TEST(FullyShardedCheckpoints, MayBeLoadedWithOtherBlocksAndIntoWholeModules) {
  const Folder folder;
  std::vector<at::Tensor> values;
  Company company(3);
  on_ranks(company.groups(), [&](const collectives::Group& group) {
    const auto model = std::make_shared<Model>();
    model->stem->bias.requires_grad_(false);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    Checkpoints checkpoints(group, folder.path);
    SlicedState before;  // no parameter has a state
    fsdp.add_to(before);
    optimizer.add_to(before);
    checkpoints.save(0, before).get();
    const Batch part = Batch::of_step(0, 3).part(group.rank(), 3);
    loss_of(fsdp.forward(part.data, false), part.target).backward();
    optimizer.step();
    SlicedState state;
    fsdp.add_to(state);
    optimizer.add_to(state);
    EXPECT_FALSE(state.tensors.contains("optimizer/head.extra.weight/momentum_buffer")) << "never reached";
    checkpoints.save(1, state).get();
    const auto whole = fsdp.gather();
    if (group.rank() == 0) values = values_of(*model);
  });
  Company smaller(2);
  on_ranks(smaller.groups(), [&](const collectives::Group& group) {
    const auto model = std::make_shared<Model>();
    for (at::Tensor& parameter : model->parameters()) parameter.detach().zero_();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.1"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    const Checkpoints checkpoints(group, folder.path);
    for (const std::int64_t step : {0, 1}) {
      SlicedState state;
      fsdp.add_to(state);
      optimizer.add_wanted_to(state, checkpoints.names(step));
      state.notes = checkpoints.load(step, state);
      optimizer.take_from(state);
    }
    SlicedState again;
    optimizer.add_to(again);
    EXPECT_FALSE(again.tensors.empty());
    EXPECT_FALSE(again.tensors.contains("optimizer/head.extra.weight/momentum_buffer"));
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values, 0);
  });
  Company one(1);
  on_ranks(one.groups(), [&](const collectives::Group& group) {
    Model model;
    for (at::Tensor& parameter : model.parameters()) parameter.detach().zero_();
    SlicedState state;
    add_module(state, model);
    (void)Checkpoints(group, folder.path).load(1, state);
    expect_close(values_of(model), values, 0);
  });
  export_tensors(folder.path, 1, folder.path / "model.safetensors", "model/");
  const auto exported = dist_optim::read_tensor_file(folder.path / "model.safetensors");
  std::size_t i = 0;
  for (const auto& entry : Model().named_parameters())
    EXPECT_TRUE(at::equal(exported.tensors.at(entry.key()), values[i++])) << entry.key();
}

TEST(FullyShardedCheckpoints, OfReplicasHaveEachSliceOnce) {
  const Folder folder;
  Company company(4);
  on_ranks(company.groups(), [&](const collectives::Group& all) {
    const std::vector<collectives::DeviceMesh::Dimension> grid{{"replicate", 2}, {"shard", 2}};
    const auto mesh = collectives::DeviceMesh::create(all, grid).get();
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{
        mesh.group("shard"), model, {.block = "layers.*", .replicas = mesh.group("replicate")}};
    Checkpoints checkpoints(all, folder.path);
    SlicedState state;
    fsdp.add_to(state);
    checkpoints.save(1, state).get();
    for (auto& [name, tensor] : state.tensors) tensor.values.zero_();
    (void)checkpoints.load(1, state);
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values_of(Model()), 0);
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_programs_test
