// FullyShardedDataParallel in types narrower than the parameters, against the same arithmetic in one process.
#include <weft/parallel/training/unscale.h>

#include <weft/dist_optim/grad_scaler.h>

#include <limits>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_types_test {
namespace {

using namespace testing;

struct Types {
  at::ScalarType compute, reduction;
};

void take_values(const torch::nn::Module& to, const torch::nn::Module& from) {
  const at::NoGradGuard no_grad;
  const auto values = from.parameters();
  const auto parameters = to.parameters();
  for (std::size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

at::Tensor narrow_loss(const at::Tensor& output, const at::Tensor& target, double scale = 1) {
  return scale * loss_of(output.to(at::kFloat), target.to(at::kFloat));
}

// Computes the gradients of one rank in the type of the reduction. parts: each has its own backward.
std::vector<at::Tensor> gradients_of(const Model& master, const std::vector<Batch>& parts, Types types,
                                     double scale = 1) {
  std::vector<at::Tensor> sums;
  for (const Batch& part : parts) {
    Model narrow(3, types.compute);
    take_values(narrow, master);
    narrow_loss(narrow.forward(part.data.to(types.compute)), part.target, scale).backward();
    std::size_t i = 0;
    for (const at::Tensor& parameter : narrow.parameters()) {
      sums.size() == i ? sums.push_back(parameter.grad().to(types.reduction))
                       : (void)sums[i].add_(parameter.grad());
      ++i;
    }
  }
  return sums;
}

// Sets the gradients of the master to the averages over the ranks.
void set_gradients(const Model& master, const std::vector<std::vector<Batch>>& parts, Types types,
                   double scale = 1) {
  std::vector<at::Tensor> sums;
  for (const auto& of_rank : parts) {
    const auto own = gradients_of(master, of_rank, types, scale);
    for (std::size_t i = 0; i < own.size(); ++i)
      sums.size() == i ? sums.push_back(own[i]) : (void)sums[i].add_(own[i]);
  }
  const auto parameters = master.parameters();
  for (std::size_t i = 0; i < sums.size(); ++i)
    parameters[i].mutable_grad() = sums[i].div(static_cast<double>(parts.size())).to(parameters[i].dtype());
}

Options options_of(Types types, bool reshard = true) {
  return {.block = "layers.*",
          .reshard_after_forward = reshard,
          .mixed_precision = {.parameters = types.compute, .reduction = types.reduction}};
}

// Trains a module of type `own`, and in one process with the same arithmetic.
void expect_same_arithmetic(int ranks, at::ScalarType own, Types types, const Options& options) {
  SCOPED_TRACE(std::string(c10::toString(types.compute)) + ", " + c10::toString(types.reduction));
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  Model master(3, own);
  torch::optim::SGD expected(master.parameters(), sgd);
  for (int step = 0; step < 3; ++step) {
    std::vector<std::vector<Batch>> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back({Batch::of_step(step, ranks).part(rank, ranks)});
    set_gradients(master, parts, types);
    expected.step();
  }
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, own), options};
    torch::optim::SGD optimizer(fsdp.parameters(), sgd);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Batch part = Batch::of_step(step, ranks).part(group.rank(), ranks);
      const bool converts = options.mixed_precision.parameters.has_value();
      const at::Tensor output = fsdp.forward(converts ? part.data : part.data.to(own));
      EXPECT_EQ(output.scalar_type(), types.compute);
      narrow_loss(output, part.target).backward();
      for (const at::Tensor& parameter : fsdp.parameters()) EXPECT_EQ(parameter.grad().scalar_type(), own);
      optimizer.step();
    }
    expect_parts(fsdp, master, 0);
    SlicedState state;
    fsdp.add_to(state);
    for (const auto& [name, tensor] : state.tensors) EXPECT_EQ(tensor.values.scalar_type(), own) << name;
  });
}

class FullyShardedArithmetic : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FullyShardedArithmetic,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Bool()));

TEST_P(FullyShardedArithmetic, UsesTheGivenTypes) {
  const auto [ranks, reshard] = GetParam();
  for (const Types types : {Types{at::kBFloat16, at::kFloat}, Types{at::kBFloat16, at::kBFloat16},
                            Types{at::kHalf, at::kFloat}, Types{at::kHalf, at::kHalf}})
    expect_same_arithmetic(ranks, at::kFloat, types, options_of(types, reshard));
}

TEST(FullyShardedTypes, AModuleInFloat16KeepsItsType) {
  expect_same_arithmetic(2, at::kHalf, {at::kHalf, at::kHalf}, {.block = "layers.*"});
}

TEST(FullyShardedTypes, AccumulateInTheTypeOfTheReduction) {
  constexpr int ranks = 2, backwards = 3;
  for (const Types types : {Types{at::kBFloat16, at::kFloat}, Types{at::kFloat, at::kBFloat16}}) {
    Model master(3, at::kFloat);
    std::vector<std::vector<Batch>> parts(ranks);
    for (int rank = 0; rank < ranks; ++rank)
      for (int i = 0; i < backwards; ++i)
        parts[static_cast<std::size_t>(rank)].push_back(Batch::of_step(i, ranks).part(rank, ranks));
    set_gradients(master, parts, types);
    on_ranks(ranks, [&](const Group& group) {
      Options options = options_of(types);
      if (types.compute == at::kFloat) options.mixed_precision.parameters.reset();  // that of the module
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kFloat), options};
      const auto backward = [&](const Batch& part) {
        narrow_loss(fsdp.forward(part.data.to(at::kFloat)), part.target).backward();
      };
      const auto& own = parts[static_cast<std::size_t>(group.rank())];
      {
        const auto guard = fsdp.no_sync();
        for (int i = 0; i + 1 < backwards; ++i) backward(own[static_cast<std::size_t>(i)]);
      }
      backward(own.back());
      expect_gradients(fsdp, master, 0);
    });
  }
}

TEST(FullyShardedTypes, AnEvaluationComputesInTheNarrowType) {
  constexpr int ranks = 2;
  const Batch batch = Batch::of_step(0, ranks);
  Model narrow(3, at::kBFloat16);
  take_values(narrow, Model(3, at::kFloat));
  const at::Tensor expected = narrow.forward(batch.data.to(at::kBFloat16)).detach();
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kFloat),
                                  options_of({at::kBFloat16, at::kFloat})};
    EXPECT_TRUE(at::equal(fsdp.forward(batch.data), expected)) << "with gradients";
    fsdp.module().eval();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(fsdp.forward(batch.data), expected));
  });
}

TEST(FullyShardedTypes, InputsGetGradientsInTheirType) {
  const Batch batch = Batch::of_step(0, 1);
  Model narrow(3, at::kBFloat16);
  take_values(narrow, Model(3, at::kFloat));
  const at::Tensor expected = batch.data.to(at::kFloat).set_requires_grad(true);
  narrow_loss(narrow.forward(expected.to(at::kBFloat16)), batch.target).backward();
  on_ranks(1, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kFloat),
                                  options_of({at::kBFloat16, at::kFloat})};
    const at::Tensor input = batch.data.to(at::kFloat).set_requires_grad(true);
    narrow_loss(fsdp.forward(input), batch.target).backward();
    EXPECT_EQ(input.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(input.grad(), expected.grad()));
  });
}

// Another module evaluates the average of the parts, which was computed as in training.
TEST(FullyShardedTypes, AnAverageOfThePartsMayBeEvaluated) {
  constexpr int ranks = 2;
  constexpr Types types{at::kBFloat16, at::kFloat};
  const Batch batch = Batch::of_step(7, ranks);
  Model master(3, at::kFloat), average(3, at::kFloat);
  torch::optim::SGD expected(master.parameters(), 0.1);
  const auto update = [](const std::vector<at::Tensor>& averages, const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values.size(); ++i) averages[i].mul_(0.5).add_(values[i], 0.5);
  };
  std::vector<at::Tensor> outputs;
  for (int step = 0; step < 3; ++step) {
    set_gradients(
        master, {{Batch::of_step(step, ranks).part(0, ranks)}, {Batch::of_step(step, ranks).part(1, ranks)}},
        types);
    expected.step();
    update(average.parameters(), master.parameters());
    Model narrow(3, types.compute);
    take_values(narrow, average);
    outputs.push_back(narrow.forward(batch.data.to(types.compute)).detach());
  }
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kFloat), options_of(types)};
    FullyShardedDataParallel averaged{group, std::make_shared<Model>(3, at::kFloat), options_of(types)};
    torch::optim::SGD optimizer(fsdp.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Batch part = Batch::of_step(step, ranks).part(group.rank(), ranks);
      narrow_loss(fsdp.forward(part.data), part.target).backward();
      optimizer.step();
      update(averaged.parameters(), fsdp.parameters());
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(averaged.forward(batch.data), outputs[static_cast<std::size_t>(step)]));
    }
  });
}

TEST(FullyShardedTypes, TheTypesOfTheOptionsTakePrecedence) {
  on_ranks(2, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kHalf),
                                  options_of({at::kFloat, at::kDouble})};
    const Batch part = Batch::of_step(0, 2).part(group.rank(), 2);
    const at::Tensor output = fsdp.forward(part.data);
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    narrow_loss(output, part.target).backward();
    for (const at::Tensor& parameter : fsdp.parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kHalf);
      EXPECT_EQ(parameter.grad().scalar_type(), at::kHalf);
    }
  });
}

// --- Buffers ---

struct Normalized : torch::nn::Module {
  Normalized() {
    blocks->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
    blocks->push_back(torch::nn::BatchNorm1d(5));
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) { return blocks->forward(x); }
  torch::nn::Sequential blocks;
};

// Also if blocks have all parameters.
TEST(FullyShardedTypes, BuffersAreConverted) {
  for (const auto& [block, type] :
       {std::pair{"blocks.*", at::kBFloat16}, {"blocks.*", at::kHalf}, {"", at::kBFloat16}})
    on_ranks(2, [&, block = block, type = type](const Group& group) {
      const auto model = std::make_shared<Normalized>();
      const auto norm = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(model->blocks->ptr(1));
      FullyShardedDataParallel fsdp{
          group, model, {.block = block, .mixed_precision = {.parameters = type, .buffers = type}}};
      EXPECT_EQ(norm->running_mean.scalar_type(), type);
      EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
      const at::Tensor output = fsdp.forward(at::randn({4, 5}) + 1);
      EXPECT_EQ(output.scalar_type(), type);
      EXPECT_GT(norm->running_mean.abs().sum().item<double>(), 0);
      output.to(at::kFloat).square().sum().backward();
      for (const at::Tensor& parameter : fsdp.parameters()) EXPECT_TRUE(parameter.grad().defined());
    });
}

// --- A gradient scaler ---

// In float16. The third loss is infinite on rank 1: all ranks skip that step, and halve the factor.
TEST(FullyShardedTypes, AScalerSkipsTheStepsOfAllRanks) {
  constexpr int ranks = 2;
  for (const Types types : {Types{at::kHalf, at::kFloat}, Types{at::kHalf, at::kHalf}})
    for (const bool reshard : {true, false}) {
      const auto part_of = [](int step, int rank) {
        Batch part = Batch::of_step(step, ranks).part(rank, ranks);
        if (step == 2 && rank == 1) part.target = at::full_like(part.target, 1e30);
        return part;
      };
      Model master(3, at::kFloat);
      torch::optim::SGD expected(master.parameters(), 0.1);
      dist_optim::GradScaler expected_scaler({.init_scale = 64});
      for (int step = 0; step < 4; ++step) {
        set_gradients(master, {{part_of(step, 0)}, {part_of(step, 1)}}, types, expected_scaler.factor());
        bool finite = true;
        for (const at::Tensor& parameter : master.parameters()) {
          finite = finite && at::isfinite(parameter.grad()).all().item<bool>();
          parameter.grad().div_(expected_scaler.factor());
        }
        EXPECT_EQ(finite, step != 2);
        if (finite) expected.step();
        expected_scaler.update(finite);
      }
      on_ranks(ranks, [&](const Group& group) {
        FullyShardedDataParallel fsdp{group, std::make_shared<Model>(3, at::kFloat),
                                      options_of(types, reshard)};
        torch::optim::SGD optimizer(fsdp.parameters(), 0.1);
        dist_optim::GradScaler scaler({.init_scale = 64});
        for (int step = 0; step < 4; ++step) {
          optimizer.zero_grad();
          const Batch part = part_of(step, group.rank());
          scaler.scale(narrow_loss(fsdp.forward(part.data), part.target)).backward();
          // Rank 0 sees only finite gradients in its own parts.
          if (step == 3 && group.rank() == 1) {
            const at::Tensor gradient = fsdp.parameters().front().grad();
            const at::Tensor kept = gradient.clone();
            gradient[0] = std::numeric_limits<float>::infinity();
            EXPECT_FALSE(training::unscale_gradients(fsdp.group(), {gradient}, 1));
            gradient.copy_(kept);
          } else if (step == 3) {
            EXPECT_FALSE(training::unscale_gradients(fsdp.group(), {at::ones({1})}, 1));
          }
          const bool finite = training::unscale_gradients(fsdp.group(), optimizer, scaler.factor());
          if (finite) optimizer.step();
          scaler.update(finite);
        }
        EXPECT_EQ(scaler.factor(), 32);
        expect_parts(fsdp, master, 0);
      });
      EXPECT_EQ(expected_scaler.factor(), 32);
    }
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_types_test
