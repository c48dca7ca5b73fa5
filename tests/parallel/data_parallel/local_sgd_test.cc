#include <weft/parallel/data_parallel/local_sgd.h>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/archives.h"

namespace weft::data_parallel::local_sgd_test {
namespace {

using namespace testing;
using Tensors = std::vector<at::Tensor>;

constexpr int ranks = 3;

std::unique_ptr<torch::optim::Optimizer> inner_optimizer(const Net& net) {
  return std::make_unique<torch::optim::AdamW>(net.parameters(), torch::optim::AdamWOptions(0.01));
}

void inner_step(auto& net, torch::optim::Optimizer& optimizer, int step, int rank) {
  train_step(optimizer, net, Batch::of_step(step, ranks).part(rank, ranks));
}

// DiLoCo of all ranks in one thread, as in the paper: outer gradients and Nesterov momentum.
struct Simulation {
  explicit Simulation(std::vector<std::vector<std::size_t>> parts) : fragments(std::move(parts)) {
    for (int rank = 0; rank < ranks; ++rank) {
      nets.push_back(std::make_unique<Net>());
      optimizers.push_back(inner_optimizer(*nets.back()));
    }
    outer = values_of(*nets[0]);
    momenta.resize(outer.size());
  }
  void steps(int first, int end) {
    for (int step = first; step < end; ++step)
      for (std::size_t rank = 0; rank < ranks; ++rank)
        inner_step(*nets[rank], *optimizers[rank], step, static_cast<int>(rank));
  }
  void round() {
    const torch::NoGradGuard no_grad;
    for (const std::size_t i : fragments[static_cast<std::size_t>(rounds++) % fragments.size()]) {
      at::Tensor gradient = at::zeros_like(outer[i]);
      for (const auto& net : nets) gradient += (outer[i] - net->parameters()[i]) / ranks;
      momenta[i] = momenta[i].defined() ? 0.9 * momenta[i] + gradient : gradient.clone();
      outer[i] = outer[i] - 0.7 * (gradient + 0.9 * momenta[i]);
      for (const auto& net : nets) net->parameters()[i].copy_(outer[i]);
    }
  }
  std::vector<std::vector<std::size_t>> fragments;
  std::vector<std::unique_ptr<Net>> nets;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  Tensors outer, momenta;
  int rounds = 0;
};

class LocalSgdOf3 : public OfRanks<ranks> {};

// The averages of parameters after each step are the steps with averaged gradients, also with momentum.
TEST_F(LocalSgdOf3, RoundsOfOneStepEqualDistributedDataParallel) {
  on_ranks(groups, [](const Group& group) {
    const auto averaged = std::make_shared<Net>(), replicated = std::make_shared<Net>();
    const auto momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD own(averaged->parameters(), momentum), shared(replicated->parameters(), momentum);
    LocalSgd outer(averaged->parameters(), {.interval = 1});
    DistributedDataParallel ddp{group, replicated};
    for (int step = 0; step < 6; ++step) {
      inner_step(*averaged, own, step, group.rank());
      ASSERT_TRUE(outer.step());
      outer.reduce(group).get();
      outer.apply();
      inner_step(ddp, shared, step, group.rank());
      expect_close(values_of(*averaged), values_of(*replicated));
    }
    EXPECT_EQ(outer.rounds(), 6U);
  });
}

class DiLoCoOf3 : public LocalSgdOf3, public ::testing::WithParamInterface<std::size_t> {
 protected:
  // The indices of a Net's parameters in each fragment. The weights and biases have 35, 7, 49, 7, 21 and 3
  // elements.
  std::vector<std::vector<std::size_t>> fragments() const {
    if (GetParam() == 1) return {{0, 1, 2, 3, 4, 5}};
    if (GetParam() == 2) return {{0, 1, 2}, {3, 4, 5}};
    return {{0}, {1}, {2}, {3}, {4}, {5}};
  }
  LocalSgdOptions options() const {
    return {.interval = 4, .outer_optimizer = nesterov(0.7, 0.9), .fragments = GetParam()};
  }
};
INSTANTIATE_TEST_SUITE_P(Fragments, DiLoCoOf3, ::testing::Values(1, 2, 6));

TEST_P(DiLoCoOf3, EqualsASimulationInOneProcess) {
  Simulation simulation(fragments());
  std::vector<std::vector<Tensors>> expected(ranks);
  for (int round = 0; round < 7; ++round) {
    simulation.steps(4 * round, 4 * round + 4);
    simulation.round();
    for (std::size_t rank = 0; rank < ranks; ++rank)
      expected[rank].push_back(values_of(*simulation.nets[rank]));
  }
  on_ranks(groups, [&](const Group& group) {
    Net net;
    const auto inner = inner_optimizer(net);
    LocalSgd outer(net.parameters(), options());
    for (int step = 0; step < 28; ++step) {
      inner_step(net, *inner, step, group.rank());
      if (!outer.step()) continue;
      outer.reduce(group).get();
      outer.apply();
      expect_close(values_of(net), expected[static_cast<std::size_t>(group.rank())].at(outer.rounds() - 1));
    }
    EXPECT_EQ(outer.rounds(), 7U);
  });
}

// Rank 2 ends the group. No rank's parameters have changed, and the next group runs the round.
TEST_P(DiLoCoOf3, ARoundThatFailsChangesNothing) {
  const auto later = company.groups({.name = "later"});
  Simulation simulation(fragments());
  for (int round = 0; round < 3; ++round) {
    simulation.steps(4 * round, 4 * round + 4);
    simulation.round();
  }
  on_ranks(groups, [&](const Group& group) {
    Net net;
    const auto inner = inner_optimizer(net);
    LocalSgd outer(net.parameters(), options());
    EXPECT_EQ(test::kind_of([&] { outer.apply(); }), ErrorKind::failed_precondition);
    for (int step = 0; step < 12; ++step) {
      inner_step(net, *inner, step, group.rank());
      if (!outer.step()) continue;
      const Tensors before = values_of(net);
      if (step == 7) {
        if (group.rank() == 2) group.abort("this round fails");
        EXPECT_TRUE(error_of([&] { outer.reduce(group).get(); }));
        EXPECT_EQ(test::kind_of([&] { outer.apply(); }), ErrorKind::failed_precondition);
        expect_close(values_of(net), before, 0);
        EXPECT_EQ(outer.rounds(), 1U);
      }
      outer.reduce(step < 7 ? group : later[static_cast<std::size_t>(group.rank())]).get();
      outer.apply();
    }
    expect_close(values_of(net), values_of(*simulation.nets[static_cast<std::size_t>(group.rank())]));
  });
}

TEST_P(DiLoCoOf3, ContinuesFromASavedState) {
  on_ranks(groups, [&](const Group& group) {
    Net net, resumed;
    const auto inner = inner_optimizer(net);
    LocalSgd outer(net.parameters(), options()), loaded(resumed.parameters(), options());
    for (int step = 0; step < 8; ++step) {
      inner_step(net, *inner, step, group.rank());
      if (!outer.step()) continue;
      outer.reduce(group).get();
      outer.apply();
    }
    test::load(loaded, test::saved(outer));
    outer.reset(), loaded.reset();
    expect_close(values_of(resumed), values_of(net), 0);
    {
      const torch::NoGradGuard no_grad;
      for (Net* const each : {&net, &resumed})
        for (const at::Tensor& parameter : each->parameters()) parameter.mul_(1 + 0.1 * group.rank());
    }
    for (LocalSgd* const each : {&outer, &loaded}) each->reduce(group).get(), each->apply();
    expect_close(values_of(resumed), values_of(net), 0);
    EXPECT_EQ(loaded.rounds(), 3U);
  });
}

// Inner steps run while the ranks average, and count in part.
TEST_F(LocalSgdOf3, APartOfLaterInnerStepsIsKept) {
  on_ranks(groups, [](const Group& group) {
    Net net;
    const auto inner = inner_optimizer(net);
    LocalSgd outer(net.parameters(), {.interval = 2, .keep = 0.25});
    for (int step = 0; step < 2; ++step) inner_step(net, *inner, step, group.rank());
    auto reduction = outer.reduce(group);
    inner_step(net, *inner, 2, group.rank());
    EXPECT_FALSE(outer.step());  // the first step of the next round
    const Tensors own = values_of(net);
    std::move(reduction).get();
    outer.apply();
    Tensors expected;
    for (std::size_t i = 0; i < own.size(); ++i)
      expected.push_back(0.25 * own[i] + 0.75 * outer.outer_parameters()[i]);
    expect_close(values_of(net), expected);
    outer.reset();
    expect_close(values_of(net), outer.outer_parameters(), 0);
  });
}

TEST(LocalSgdOptionsOf, AreChecked) {
  const Tensors parameters{at::zeros({2}), at::zeros({3})};
  const auto refused = [&](const Tensors& of, const LocalSgdOptions& options, const std::string& words) {
    expect_error([&] { LocalSgd(of, options); }, ErrorKind::invalid_argument, {words});
  };
  refused({}, {}, "0 parameters, expected 1 or more");
  refused(parameters, {.interval = 0}, "interval 0, expected 1 or more");
  refused(parameters, {.fragments = 3}, "3 fragments, expected 1 to 2");
  refused(parameters, {.keep = 1}, "keep 1.0");
}

}  // namespace
}  // namespace weft::data_parallel::local_sgd_test
