// What a program may do with a module after FullyShardedDataParallel has split it: load weights, freeze and
// unfreeze parameters, keep gradients, and step within gather(). Also a forward that throws.

#include <sstream>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_changes_test {
namespace {

using namespace testing;

constexpr int ranks = 2;

std::shared_ptr<Model> filled(double value) {
  auto model = std::make_shared<Model>();
  for (const at::Tensor& parameter : model->parameters()) parameter.detach().mul_(value);
  return model;
}

void load(const std::shared_ptr<Model>& model, const std::string& saved) {
  std::istringstream in(saved);
  auto holder = model;
  torch::load(holder, in);
}

std::string saved(const std::shared_ptr<Model>& model) {
  std::ostringstream out;
  torch::save(model, out);
  return out.str();
}

// --- Loads ---

enum class Where { kept, lost, split };
class LoadedWeights : public ::testing::TestWithParam<std::tuple<Where, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, LoadedWeights,
                         ::testing::Combine(::testing::Values(Where::kept, Where::lost, Where::split),
                                            ::testing::Bool(), ::testing::Bool()));

TEST_P(LoadedWeights, AreTrainedFurther) {
  const auto [where, narrow, reshard] = GetParam();
  const std::string file = saved(filled(0.3));
  on_ranks(ranks, [&, where = where, narrow = narrow, reshard = reshard](const auto& group) {
    const auto model = std::make_shared<Model>(), whole = std::make_shared<Model>();
    Options options{.block = "layers.*", .reshard_after_forward = reshard};
    if (narrow) options.mixed_precision.parameters = at::kFloat;
    const double tolerance = narrow ? 1e-4 : 1e-10;
    FullyShardedDataParallel fsdp{group, model, options};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD expected(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      train(fsdp, optimizer, step, ranks, group.rank());
      train(*whole, expected, step, ranks);
      if (step % 2 != 0) continue;
      if (where != Where::lost) load(whole, file);
      if (where == Where::split) {
        EXPECT_THROW(load(model, file), c10::Error) << "LibTorch reads the old memory";
        for (const auto& entry : model->named_parameters())
          entry.value().set_data(whole->named_parameters()[entry.key()].detach().clone());
        SlicedState state;
        fsdp.add_to(state);  // a checkpoint has the loaded values
        expect_parts(fsdp, *whole, 0);
        continue;
      }
      {
        const auto all = fsdp.gather(where == Where::kept ? Changes::kept : Changes::lost);
        load(model, file);
        if (where == Where::kept && !narrow) expect_close(values_of(*model), values_of(*whole), 0);
      }
      expect_parts(fsdp, *whole, where == Where::kept ? 0 : tolerance);  // not rounded
    }
    expect_parts(fsdp, *whole, tolerance);
    const auto all = fsdp.gather();
    for (const at::Tensor& parameter : model->parameters())
      EXPECT_EQ(parameter.scalar_type(), narrow ? at::kFloat : at::kDouble);
  });
}

TEST(FullyShardedChanges, AnotherTypeIsRefusedOnAllRanks) {
  for (const bool gathered : {true, false}) {
    on_ranks(ranks, [&](const Group& group) {
      const auto model = std::make_shared<Model>();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
      const auto change = [&] {
        if (group.rank() == 1) model->stem->bias.set_data(at::zeros({5}, at::kFloat));
      };
      if (gathered) {
        const auto all = fsdp.gather(Changes::kept);
        change();
      } else {
        change();
      }
      expect_error([&] { (void)fsdp.forward(Batch::of_step(0, 1).data); },
                   group.rank() == 1 ? "has another type now (Float, expected Double)" : "rank 1");
    });
  }
}

// --- Frozen and unfrozen parameters ---

void set_trained(Model& model, const std::vector<std::string>& prefixes) {
  for (auto& entry : model.named_parameters())
    entry.value().requires_grad_(
        std::any_of(prefixes.begin(), prefixes.end(),
                    [&](const std::string& prefix) { return entry.key().starts_with(prefix); }));
}

// By step: the parameters that require grad.
const std::vector<std::vector<std::string>> unfrozen{{"head.used"},        {"head"},
                                                     {"head", "layers.2"}, {"head", "layers", "stem.bias"},
                                                     {"layers.0", "stem"}, {"stem", "layers", "head"}};

class Unfreezing : public ::testing::TestWithParam<std::tuple<bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(All, Unfreezing, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST_P(Unfreezing, EqualsOneProcess) {
  const auto [of_torch, reshard] = GetParam();
  const Folder folder;
  on_ranks(ranks, [&, of_torch = of_torch, reshard = reshard](const Group& group) {
    const torch::optim::AdamWOptions spec(0.05);
    const auto model = std::make_shared<Model>(), whole = std::make_shared<Model>();
    set_trained(*model, unfrozen[0]);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
    FullyShardedOptimizer own(fsdp, spec);
    torch::optim::AdamW other(fsdp.parameters(), spec), expected(whole->parameters(), spec);
    for (std::size_t step = 0; step < unfrozen.size(); ++step) {
      set_trained(*model, unfrozen[step]);
      set_trained(*whole, unfrozen[step]);
      const int batch = static_cast<int>(step);
      of_torch ? train(fsdp, other, batch, ranks, group.rank())
               : train(fsdp, own, batch, ranks, group.rank());
      train(*whole, expected, batch, ranks);
      expect_parts(fsdp, *whole, 1e-9);
    }
    if (of_torch) return;
    Checkpoints checkpoints(group, folder.path);
    checkpoints.save(1, state_of(fsdp, own)).get();
    const auto fresh = std::make_shared<Model>();
    set_trained(*fresh, unfrozen[0]);
    FullyShardedDataParallel again{group, fresh, {.block = "layers.*"}};
    FullyShardedOptimizer resumed(again, spec);
    testing::load(again, resumed, checkpoints, 1);
    for (const int step : {0, 3, 5}) {  // the restored state serves parameters that are unfrozen later
      set_trained(*fresh, unfrozen[step]);
      set_trained(*whole, unfrozen[step]);
      train(again, resumed, 9 + step, ranks, group.rank());
      train(*whole, expected, 9 + step, ranks);
      expect_parts(again, *whole, 1e-9);
    }
  });
}

// The backward of a forward that ran before parameters were frozen for another forward.
TEST(FullyShardedChanges, AGraphOutlivesTheFreezingOfItsParameters) {
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Model>(), whole = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer own(fsdp, torch::optim::AdamWOptions(0.05));
    torch::optim::AdamW expected(whole->parameters(), torch::optim::AdamWOptions(0.05));
    const std::vector<std::string> all{"stem", "layers", "head"};
    for (int step = 0; step < 2; ++step) {
      const Batch part = Batch::of_step(step, ranks).part(group.rank(), ranks);
      own.zero_grad();
      const at::Tensor loss = loss_of(fsdp.forward(part.data), part.target);
      set_trained(*model, {});
      {
        const at::NoGradGuard no_grad;
        (void)fsdp.forward(part.data);
      }
      set_trained(*model, all);
      loss.backward();
      own.step();
      train(*whole, expected, step, ranks);
    }
    expect_parts(fsdp, *whole, 1e-9);
  });
}

TEST(FullyShardedChanges, UnfreezingOnOneRankIsRefusedOnAllRanks) {
  for (const bool other : {true, false}) {  // the other rank unfreezes another parameter, or none
    on_ranks(ranks, [&](const Group& group) {
      const auto model = std::make_shared<Model>();
      set_trained(*model, {"head"});
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
      if (group.rank() == 0) set_trained(*model, {"head", "layers.1"});
      if (group.rank() == 1 && other) set_trained(*model, {"head", "layers.0"});
      const auto forward = [&] { (void)fsdp.forward(Batch::of_step(0, 1).data); };
      if (other) {
        expect_error(forward, ErrorKind::failed_precondition,
                     "layers.1.norm.weight requires grad now on rank 0");
      } else {
        EXPECT_TRUE(error_of(forward));
      }
    });
  }
}

// --- Gradients that the program holds ---

// A parameter that is frozen when its module is wrapped is in a shard of its own.
TEST(FullyShardedChanges, ANewRankWithOtherShardsIsRefusedOnAllRanks) {
  Company company(ranks);
  const auto later = company.groups({.name = "later"});
  on_ranks(company.groups(), [&](const Group& group) {
    const auto own = group.split(group.rank()).get();
    const auto model = std::make_shared<Model>();
    if (group.rank() == 1) model->parameters().back().set_requires_grad(false);
    FullyShardedDataParallel fsdp{*own, model, {.block = "layers.*"}};
    expect_error([&] { fsdp.set_group(later[static_cast<std::size_t>(group.rank())]); },
                 ErrorKind::failed_precondition, "rank 1 has its parameters in other shards than rank 0");
  });
}

TEST(FullyShardedChanges, AHeldGradientKeepsItsValues) {
  for (const bool narrow : {false, true}) {
    on_ranks(ranks, [&](const Group& group) {
      Options options{.block = "layers.*"};
      if (narrow) options.mixed_precision.reduction = at::kFloat;  // not reduced into the gradients' memory
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), options};
      std::vector<at::Tensor> held, copies;
      for (int step = 0; step < 3; ++step) {
        for (const at::Tensor& leaf : fsdp.parameters()) leaf.mutable_grad().reset();
        own_loss(fsdp, step).backward();
        for (const at::Tensor& leaf : fsdp.parameters()) {
          held.push_back(leaf.grad());
          copies.push_back(leaf.grad().clone());
        }
      }
      expect_close(held, copies, 0);
      EXPECT_FALSE(at::equal(held.front(), held[fsdp.parameters().size()]));
    });
  }
}

// --- gather() and forward ---

TEST(FullyShardedGathers, AreAllowedBetweenForwardAndBackward) {
  for (const bool reshard : {true, false}) {
    Model whole;
    const Batch batch = Batch::of_step(0, ranks);
    (2 * loss_of(whole.forward(batch.data), batch.target)).backward();
    on_ranks(ranks, [&](const Group& group) {
      const auto model = std::make_shared<Model>();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
      const Batch part = batch.part(group.rank(), ranks);
      const auto loss = [&] { return loss_of(fsdp.forward(part.data), part.target); };
      const auto gather = [&] {
        const auto all = fsdp.gather();
        expect_close(values_of(*model), values_of(Model()), 0);
      };
      const at::Tensor first = loss();
      gather();
      const at::Tensor second = loss();
      gather();
      (first + second).backward();
      gather();
      expect_gradients(fsdp, whole);
    });
  }
}

class GatheredChanges : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GatheredChanges,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST_P(GatheredChanges, AreKeptOnRequest) {
  const auto [count, narrow] = GetParam();
  on_ranks(count, [&, narrow = narrow](const Group& group) {
    const auto model = std::make_shared<Model>();
    Options options{.block = "layers.*"};
    if (narrow) options.mixed_precision.parameters = at::kFloat;
    FullyShardedDataParallel fsdp{group, model, options};
    Model expected;
    const auto change = [](Model& of) {
      of.apply([](torch::nn::Module& module) {
        const at::NoGradGuard no_grad;
        if (auto* const norm = module.as<torch::nn::LayerNormImpl>()) norm->bias.fill_(0.25);
      });
      const at::NoGradGuard no_grad;
      of.stem->weight[4][4] = 2;
      of.head->extra->bias.mul_(0);
    };
    {
      const auto whole = fsdp.gather();
      change(*model);
    }
    expect_parts(fsdp, expected, 0);
    {
      const auto outer = fsdp.gather();
      const auto inner = fsdp.gather(Changes::kept);
      change(*model);
    }
    change(expected);
    expect_parts(fsdp, expected, 0);
    const Batch batch = Batch::of_step(0, 1);
    const at::NoGradGuard no_grad;
    expect_close({fsdp.forward(batch.data).to(at::kDouble)}, {expected.forward(batch.data)},
                 narrow ? 1e-5 : 1e-10);
  });
}

TEST(FullyShardedChanges, AStepWithinAGatherIsKept) {
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Model>(), whole = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1));
    torch::optim::SGD expected(whole->parameters(), 0.1);
    const Batch batch = Batch::of_step(0, ranks), part = batch.part(group.rank(), ranks);
    loss_of(fsdp.forward(part.data), part.target).backward();
    loss_of(whole->forward(batch.data), batch.target).backward();
    {
      const auto outer = fsdp.gather();
      const auto all = fsdp.gather(Changes::kept);
      optimizer.step();
      model->stem->bias.detach().fill_(2);
    }
    expected.step();
    whole->stem->bias.detach().fill_(2);
    expect_parts(fsdp, *whole, 1e-10);
  });
}

TEST(FullyShardedChanges, AForwardThatThrowsOnOneRankFailsOnAllRanks) {
  for (const bool evaluates : {false, true}) {
    on_ranks(3, [&](const Group& group) {
      const at::AutoGradMode mode(!evaluates);
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
      const at::Tensor input = at::ones({2, group.rank() == 1 ? 7 : 5}, at::kDouble);
      const auto run = [&] {
        for (int step = 0; step < 2; ++step) {
          const at::Tensor loss = fsdp.forward(input).sum();
          if (!evaluates) loss.backward();
        }
      };
      if (group.rank() == 1) {
        EXPECT_THROW(run(), c10::Error);
        return;
      }
      expect_error(run, "rank 1: a forward of the module threw");
    });
  }
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_changes_test
