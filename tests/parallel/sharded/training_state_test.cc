// Training runs that are saved on some ranks and continue on others.

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::training_state_test {
namespace {

using namespace testing;
using data_parallel::testing::Net;

constexpr int rows = 12, steps = 6;  // rows: of all ranks together

// A net whose middle layer is trained in odd steps only, so that its state has another count.
struct Trainer {
  Trainer(const Group& group, const dist_optim::OptimizerSpec& spec)
      : group(group), model(std::make_shared<Net>()), fsdp(group, model), optimizer(fsdp, spec) {
    model->register_buffer("seen", at::zeros({1}, at::kDouble));
  }
  double step(int number) {
    const auto batch = Batch::of_step(number, 1, rows);
    const auto part = batch.part(group.rank(), group.size());
    optimizer.zero_grad();
    const at::Tensor loss = torch::mse_loss(fsdp.forward(part.data, number % 2 == 1), part.target);
    loss.backward();
    optimizer.step();
    const at::Tensor mean = loss.detach().clone();
    group.all_reduce(mean, collectives::ReduceOp::avg).get();
    optimizer.set_learning_rate(0.95 * optimizer.learning_rate("last"), "last");
    model->named_buffers()["seen"].add_(rows);
    return mean.item<double>();
  }
  const Group group;
  std::shared_ptr<Net> model;
  FullyShardedDataParallel<Net> fsdp;
  FullyShardedOptimizer optimizer;
};

struct Ranks {
  int before, after;
};
class SavedTraining : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SavedTraining,
                         ::testing::Values(Ranks{1, 3}, Ranks{2, 2}, Ranks{2, 4}, Ranks{3, 1}, Ranks{4, 3}));

TEST_P(SavedTraining, ContinuesOnAnotherNumberOfRanks) {
  const std::map<std::string, double> slower{{"lr", 0.01}};
  const dist_optim::OptimizerSpec specs[] = {
      dist_optim::OptimizerSpec(torch::optim::SGDOptions(0.1).momentum(0.9)).with_group("last", slower),
      dist_optim::OptimizerSpec(torch::optim::AdamWOptions(0.02)).with_group("last", slower)};
  for (const auto& spec : specs) {
    SCOPED_TRACE(dist_optim::to_string(spec));
    const Folder folder;
    std::vector<double> losses;
    on_ranks(GetParam().before, [&](const Group& group) {
      Trainer trainer(group, spec);
      Checkpoints checkpoints(group, folder.path);
      for (int number = 0; number < steps; ++number) {
        const double loss = trainer.step(number);
        if (group.rank() == 0) losses.push_back(loss);
        if (number != 2) continue;
        SlicedState state = state_of(trainer.fsdp, trainer.optimizer);
        state.notes["step"] = std::to_string(number);
        checkpoints.save(number, state).get();
      }
    });
    on_ranks(GetParam().after, [&](const Group& group) {
      Trainer trainer(group, spec);
      Checkpoints checkpoints(group, folder.path);
      ASSERT_EQ(checkpoints.latest(), 2);
      EXPECT_EQ(load(trainer.fsdp, trainer.optimizer, checkpoints, 2).at("step"), "2");
      EXPECT_EQ(trainer.model->named_buffers()["seen"].item<double>(), 3 * rows);
      for (int number = 3; number < steps; ++number)
        EXPECT_NEAR(trainer.step(number), losses[static_cast<std::size_t>(number)], 1e-10)
            << "step " << number;
    });
  }
}

TEST(SavedTrainings, ALearningRateThatIsNoNumberIsRefused) {
  on_ranks(1, [&](const Group& group) {
    Trainer trainer(group, torch::optim::SGDOptions(0.1));
    SlicedState state;
    trainer.optimizer.add_to(state);
    state.notes["optimizer/learning_rate/"] = "fast";
    expect_error([&] { trainer.optimizer.take_from(state); }, ErrorKind::invalid_argument,
                 "\"fast\", expected a learning rate");
  });
}

TEST(FullyShardedOptimizers, EqualThoseOfLibTorch) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Net>();
    FullyShardedDataParallel fsdp{group, model};
    torch::optim::AdamW expected(fsdp.parameters(), torch::optim::AdamWOptions(0.01));
    Trainer trainer(group, torch::optim::AdamWOptions(0.01));
    for (int number = 0; number < 3; ++number) {
      const auto part = Batch::of_step(number, 1, rows).part(group.rank(), group.size());
      expected.zero_grad();
      torch::mse_loss(fsdp.forward(part.data, number % 2 == 1), part.target).backward();
      expected.step();
      trainer.optimizer.zero_grad();
      torch::mse_loss(trainer.fsdp.forward(part.data, number % 2 == 1), part.target).backward();
      trainer.optimizer.step();
    }
    expect_close(fsdp.parameters(), trainer.fsdp.parameters(), 0);
  });
}

// As docs/sharded.md shows it.
TEST(SavedTrainings, AnOptimizerOfLibTorchContinues) {
  const dist_optim::OptimizerSpec spec = torch::optim::AdamWOptions(0.01);
  constexpr std::int64_t saved = 2;
  const Folder folder;
  std::vector<at::Tensor> expected;
  struct Training {
    explicit Training(const Group& group) : ddp(group, model) {}
    void step(int number) {
      const Group& group = ddp.group();
      const auto part = Batch::of_step(number, 1, rows).part(group.rank(), group.size());
      optimizer.zero_grad();
      torch::mse_loss(ddp.forward(part.data), part.target).backward();
      optimizer.step();
    }
    std::shared_ptr<Net> model = std::make_shared<Net>();
    data_parallel::DistributedDataParallel<Net> ddp;
    torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(0.01)};
  };
  Company company(2);
  on_ranks(company.groups(), [&](const Group& group) {
    Training training(group);
    Checkpoints checkpoints(group, folder.path);
    for (int number = 0; number < steps; ++number) {
      training.step(number);
      if (number != saved) continue;
      const auto slices = slices_of(*training.model);
      dist_optim::OptimizerState own{.optimizer = spec.name, .learning_rates = {}, .tensors = {}};
      for (const auto& each : slices)
        dist_optim::read_state(spec.name, training.optimizer, each.leaf.tensor, each.leaf.name, own);
      SlicedState state;
      add_module(state, *training.model);
      add_optimizer(state, own, slices, "optimizer/");
      checkpoints.save(number, state).get();
    }
    if (group.rank() == 0) expected = values_of(*training.model);
  });
  on_ranks(company.groups(), [&](const Group& group) {
    Training training(group);
    Checkpoints checkpoints(group, folder.path);
    const auto slices = slices_of(*training.model);
    SlicedState state;
    add_module(state, *training.model);
    add_wanted_optimizer(state, spec, slices, checkpoints.names(saved), "optimizer/");
    state.notes = checkpoints.load(saved, state);
    const auto own = optimizer_in(state, spec.name, slices, "optimizer/");
    for (const auto& each : slices)
      EXPECT_EQ(dist_optim::write_state(own, each.leaf.name, each.leaf.tensor, training.optimizer), 3U);
    for (int number = saved + 1; number < steps; ++number) training.step(number);
    expect_close(values_of(*training.model), expected, 0);
  });
}

// As in a GroupPipeline, whose optimizer keeps the parameters that the program freezes.
TEST(SavedTrainings, AFrozenParameterHasItsState) {
  const dist_optim::OptimizerSpec spec = torch::optim::AdamWOptions(0.01);
  const auto model = std::make_shared<Net>();
  const auto parameters = dist_optim::parameters_of(*model);
  dist_optim::ShadowLeaves optimizer(parameters, spec);
  dist_optim::Gradients gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    gradients[i] = at::ones_like(parameters[i].tensor.detach());
  optimizer.step(gradients);
  model->first->weight.requires_grad_(false);
  SlicedState state;
  add_optimizer(state, optimizer.state(), slices_of(*model), "optimizer/");
  EXPECT_TRUE(state.tensors.contains("optimizer/first.weight/exp_avg"));
  const auto loaded = optimizer_in(state, spec.name, slices_of(*model), "optimizer/");
  optimizer.set_state(loaded);
  dist_optim::ShadowLeaves without_frozen(dist_optim::parameters_of(*model), spec);
  expect_error([&] { without_frozen.set_state(loaded); }, ErrorKind::invalid_argument, "first.weight/");
}

}  // namespace
}  // namespace weft::sharded::training_state_test
