// FullyShardedDataParallel with the forms that modules, optimizers and programs have.
#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/export_tensors.h>

#include <c10/core/InferenceMode.h>

#include <cmath>
#include <limits>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_programs_test {
namespace {

using namespace testing;

constexpr int ranks = 2;

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

TEST(FullyShardedModules, MayReturnOutputsThatTheLossDoesNotUse) {
  expect_equal_gradients([] { return std::make_shared<TwoOutputs>(); },
                         [](auto& module, const Batch& part) {
                           return module.forward(Pair{part.data, {part.data * 2}}).others[0].square().mean();
                         });
}

TEST(FullyShardedModules, MayRunOtherBlocksInEachIteration) {
  const auto loss = [](auto& module, int step, int, const Batch& part) {
    const Pair out = module.forward(Pair{part.data, {part.data * 2}}, step % 2 == 1);
    return out.first.square().mean() + out.others[0].square().mean();
  };
  expect_equal_steps(4, [] { return std::make_shared<TwoOutputs>(); }, loss);
}

// A module with a block without parameters, a parameter without dimensions, and several types within a block.
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

// A module of which a rank may skip a part that another rank computes. The skipped part then has no backward
// hook, or one without gradients.
struct Droppable : torch::nn::Module {
  struct Part : torch::nn::Module {
    explicit Part(std::uint64_t seed) {
      weight =
          register_parameter("weight", at::randn({5, 5}, at::detail::createCPUGenerator(seed), at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x, bool drop) { return drop ? x : x + torch::tanh(x.mm(weight)); }
    at::Tensor weight;
  };
  Droppable() {
    for (std::uint64_t i = 0; i < 4; ++i)
      parts.push_back(register_module("part" + std::to_string(i), std::make_shared<Block<Part>>(i)));
  }
  // Returns the values after each part.
  std::vector<at::Tensor> forward(at::Tensor x, std::size_t dropped) {
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < parts.size(); ++i) values.push_back(x = parts[i]->forward(x, i == dropped));
    return values;
  }
  std::vector<std::shared_ptr<Block<Part>>> parts;
};

TEST(FullyShardedModules, MayDropBlocksOnSomeRanks) {
  for (const bool uses_last : {true, false}) {
    // The losses of the ranks use different outputs, and the ranks skip different parts.
    const auto loss = [&](auto& module, int step, int rank, const Batch& part) {
      const auto used = uses_last ? 3 : static_cast<std::size_t>((step + rank) % 4);
      auto dropped = static_cast<std::size_t>((step + 2 * rank) % 5);
      if (used == 0 && dropped == 0) dropped = 4;  // otherwise no backward would be possible
      return module.forward(part.data, dropped)[used].square().mean();
    };
    expect_equal_steps(10, [] { return std::make_shared<Droppable>(); }, loss);
  }
}

// Backward reaches a parameter of the loss before the outputs of the module.
TEST(FullyShardedModules, MayHaveAParameterThatTheLossAloneUses) {
  const auto make = [] {
    auto model = std::make_shared<Model>();
    model->register_parameter("scale", at::scalar_tensor(0.5, at::kDouble));
    return model;
  };
  const auto whole = make();
  const auto scaled = [](const at::Tensor& loss, const at::Tensor& scale) {
    return loss * (-scale).exp() + scale;
  };
  const Batch batch = Batch::of_step(0, ranks);
  scaled(loss_of(whole->forward(batch.data), batch.target), whole->named_parameters()["scale"]).backward();
  on_ranks(ranks, [&](const Group& group) {
    const auto model = make();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch part = batch.part(group.rank(), ranks);
    const at::Tensor loss = loss_of(fsdp.forward(part.data), part.target);
    scaled(loss, model->named_parameters()["scale"]).backward();
    expect_gradients(fsdp, *whole);
  });
}

// Backward uses the first weight after it has computed its last gradient.
TEST(FullyShardedModules, MayUseAParameterWithoutItsGradient) {
  struct Detached : torch::nn::Module {
    Detached() {
      first = register_parameter("first", at::randn({5, 5}, at::detail::createCPUGenerator(1), at::kDouble));
      second =
          register_parameter("second", at::randn({5, 5}, at::detail::createCPUGenerator(2), at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) { return x.mm(first.detach()).tanh().mm(second); }
    at::Tensor first, second;
  };
  struct Chain : torch::nn::Module {
    Chain() {
      for (int i = 0; i < 4; ++i)
        blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block<Detached>>()));
    }
    at::Tensor forward(at::Tensor x) {
      for (auto& block : blocks) x = block->forward(x);
      return x;
    }
    std::vector<std::shared_ptr<Block<Detached>>> blocks;
  };
  expect_equal_gradients(
      [] { return std::make_shared<Chain>(); },
      [](auto& module, const Batch& part) { return module.forward(part.data).square().mean(); });
}

// --- Forms of programs ---

TEST(FullyShardedUses, AnEvaluationEqualsThatOfTheWholeModule) {
  Model whole;
  const Batch batch = Batch::of_step(0, ranks);
  const at::Tensor expected = whole.forward(batch.data).detach();
  on_ranks(ranks, [&](const Group& group) {
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
  on_ranks(ranks, [&](const Group& group) {
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

// The norm is NaN, as for torch::nn::utils::clip_grad_norm_.
TEST(FullyShardedUses, ANaNOfOneRankIsTheNormOfAllRanks) {
  on_ranks(ranks, [&](const Group& group) {
    for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
      own_loss(fsdp).backward();
      if (group.rank() == 1) fsdp.parameters().front().grad()[0] = std::nan("");
      EXPECT_TRUE(std::isnan(fsdp.clip_grad_norm(0.01, type))) << type;
      for (const at::Tensor& parameter : fsdp.parameters())
        EXPECT_TRUE(parameter.grad().isnan().all().item<bool>()) << type;
    }
  });
}

TEST(FullyShardedUses, TheTypeOfTheNormIsPositive) {
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
    for (const double type : {0.0, -1.0, std::nan("")})
      EXPECT_EQ(test::kind_of([&] { fsdp.clip_grad_norm(1, type); }), ErrorKind::invalid_argument) << type;
  });
}

TEST(FullyShardedUses, ReplicasBeginWithTheValuesOfRankZero) {
  on_ranks(4, [&](const Group& all) {
    const auto mesh = two_replicas(all);
    const auto model = std::make_shared<Model>();
    const at::Tensor buffer = model->register_buffer("seen", at::full({2}, 1.0 + all.rank(), at::kDouble));
    if (all.rank() != 0)
      for (at::Tensor& parameter : model->parameters()) parameter.detach().fill_(all.rank());
    FullyShardedDataParallel fsdp{mesh.group("shard"), model, {.replicas = mesh.group("replicate")}};
    EXPECT_TRUE(at::equal(buffer, at::ones({2}, at::kDouble)));
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values_of(Model()), 0);
  });
}

TEST(FullyShardedUses, SeveralOptimizersStepPartsOfTheParameters) {
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
    std::vector<at::Tensor> stem, others;
    for (const ParameterSlice& slice : fsdp.units().slices())
      (slice.parameter.starts_with("stem") ? stem : others).push_back(slice.leaf.tensor);
    torch::optim::SGD first(stem, 0.1), second(others, 0.1);
    own_loss(fsdp).backward();
    first.zero_grad();
    for (const at::Tensor& each : stem) EXPECT_FALSE(each.grad().defined());
    for (const at::Tensor& each : others) EXPECT_TRUE(each.grad().defined());
    second.step();
  });
}

// --- Refusals ---

TEST(FullyShardedMisuse, IsReportedWithTheCall) {
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch batch = Batch::of_step(0, 1);
    expect_error([&] { FullyShardedDataParallel(group, model); }, ErrorKind::invalid_argument,
                 "stem.weight has no memory, expected a whole module that is not split over ranks");
    expect_error([&] { model->head->forward(batch.data, true); }, ErrorKind::failed_precondition,
                 "the block head runs outside");
    const at::Tensor output = fsdp.forward(batch.data);
    model->stem->weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      expect_error([&] { (void)fsdp.gather(); }, ErrorKind::failed_precondition,
                   "gather() within forward or backward");
      return gradient;
    });
    loss_of(output, batch.target).backward();
  });
}

TEST(FullyShardedMisuse, OfGathersAndForwardsIsReported) {
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch batch = Batch::of_step(0, 1);
    EXPECT_ANY_THROW(fsdp.forward(at::ones({2, 7}, at::kDouble)));
    const at::Tensor loss = loss_of(fsdp.forward(batch.data), batch.target);
    {
      const auto whole = fsdp.gather();
      expect_error([&] { loss.backward(); }, "backward within gather()");
    }
    EXPECT_ANY_THROW(fsdp.forward(at::ones({2, 7}, at::kDouble)));
    (void)fsdp.gather();  // the forward that threw has ended
  });
}

TEST(FullyShardedMisuse, OfModulesIsReported) {
  on_ranks(2, [&](const Group& group) {
    const auto expect_refused = [&](const std::shared_ptr<torch::nn::Module>& module, ErrorKind kind,
                                    const std::string& text, const Options& options = {}) {
      expect_error([&] { ShardedModule(group, module, options); }, kind, text);
    };
    expect_refused(std::make_shared<Aliased>(), ErrorKind::invalid_argument, "b shares its memory with a");
    const auto model = std::make_shared<Model>();
    if (group.rank() == 1) model->stem->bias.requires_grad_(false);
    expect_refused(model, ErrorKind::failed_precondition, "rank 1 has the parameter stem.bias");
    EXPECT_NO_THROW((void)model->stem->weight.sum()) << "a refused module is whole";
    expect_refused(std::make_shared<Model>(), ErrorKind::failed_precondition, "rank 1 has the",
                   {.block = group.rank() == 0 ? "layers.*" : "layers.1"});
    // Only one rank refuses. The other one gets the text of its error.
    expect_refused(std::make_shared<Model>(),
                   group.rank() == 1 ? ErrorKind::invalid_argument : ErrorKind::failed_precondition,
                   "no module matches the block", {.block = group.rank() == 1 ? "none" : "layers.*"});
    expect_refused(std::make_shared<Model>(), ErrorKind::failed_precondition, "reshard_after_forward on",
                   {.reshard_after_forward = group.rank() == 1});
  });
}

TEST(FullyShardedMisuse, OfOptimizersIsReported) {
  on_ranks(1, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
    const auto expect_refused = [&](const std::string& text, const std::function<void()>& f) {
      expect_error(f, ErrorKind::invalid_argument, text);
    };
    expect_refused("the parameter group \"bias\" has no parameter", [&] {
      FullyShardedOptimizer(
          fsdp, dist_optim::OptimizerSpec(torch::optim::SGDOptions(0.1)).with_group("bias", {{"lr", 0}}));
    });
    FullyShardedOptimizer sgd(fsdp, torch::optim::SGDOptions(0.1)),
        adam(fsdp, torch::optim::AdamOptions(0.1));
    SlicedState state;
    sgd.add_to(state);
    expect_refused("is that of SGD, expected Adam", [&] { adam.take_from(state); });
    state.notes.clear();
    expect_refused("expected the notes that load() returns", [&] { sgd.take_from(state); });
  });
}

// --- Checkpoints ---

TEST(FullyShardedCheckpoints, MayBeLoadedWithOtherBlocksAndIntoWholeModules) {
  const Folder folder;
  std::vector<at::Tensor> values;
  on_ranks(3, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    model->stem->bias.requires_grad_(false);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    Checkpoints checkpoints(group, folder.path);
    checkpoints.save(0, state_of(fsdp, optimizer)).get();  // no parameter has a state
    const Batch part = Batch::of_step(0, 3).part(group.rank(), 3);
    loss_of(fsdp.forward(part.data, false), part.target).backward();
    optimizer.step();
    SlicedState state = state_of(fsdp, optimizer);
    EXPECT_FALSE(state.tensors.contains("optimizer/head.extra.weight/momentum_buffer")) << "never reached";
    checkpoints.save(1, state).get();
    const auto whole = fsdp.gather();
    if (group.rank() == 0) values = values_of(*model);
  });
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    for (at::Tensor& parameter : model->parameters()) parameter.detach().zero_();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.1"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    const Checkpoints checkpoints(group, folder.path);
    for (const std::int64_t step : {0, 1}) load(fsdp, optimizer, checkpoints, step);
    SlicedState again;
    optimizer.add_to(again);
    EXPECT_FALSE(again.tensors.empty());
    EXPECT_FALSE(again.tensors.contains("optimizer/head.extra.weight/momentum_buffer"));
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values, 0);
  });
  on_ranks(1, [&](const Group& group) {
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

TEST(FullyShardedCheckpoints, HaveTheStateOfAParameterWithoutDimensions) {
  const Folder folder;
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Odd>(), {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamOptions(0.1));
    Checkpoints checkpoints(group, folder.path);
    fsdp.forward(Batch::of_step(0, 1).data).square().mean().backward();
    optimizer.step();
    const SlicedState state = state_of(fsdp, optimizer);
    checkpoints.save(1, state).get();
    load(fsdp, optimizer, checkpoints, 1);
    SlicedState again;
    optimizer.add_to(again);
    for (const auto& [name, tensor] : again.tensors)
      EXPECT_TRUE(at::equal(tensor.values, state.tensors.at(name).values)) << name;
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_programs_test
