#include <weft/parallel/data_parallel/replica.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::replica_test {
namespace {

using namespace testing;

class Replicas : public OfRanks<2> {};

struct Normalized : torch::nn::Module {
  Normalized() {
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    norm->to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) { return norm(x); }
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST_F(Replicas, MayKeepTheirInitialValues) {
  const auto later = company.groups({.name = "later"});
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>(10 + group.rank());
    const auto mine = values_of(*net);
    DistributedDataParallel ddp{group, net, Options{.init_sync = false}};
    ddp.set_group(later[static_cast<std::size_t>(group.rank())]);
    expect_close(values_of(*net), mine, 0);
  });
}

// The others may have frozen all parameters for now.
TEST_F(Replicas, OfANewRankFreezeWhatTheOthersHaveFrozen) {
  const auto later = company.groups({.name = "later"});
  on_ranks(groups, [&](const Group& group) {
    const auto own = group.split(group.rank()).get();
    const Group& whole = later[static_cast<std::size_t>(group.rank())];
    auto net = std::make_shared<Net>(10 + group.rank());
    std::optional<DistributedDataParallel<Net>> ddp;
    if (group.rank() == 0) {
      ddp.emplace(*own, net);
      for (const at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
      ddp->set_group(whole);
    } else {
      ddp.emplace(whole, net);
    }
    for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.requires_grad());
    expect_close(values_of(*net), values_of(Net(10)), 0);
  });
}

TEST_F(Replicas, ThatDifferAreRefusedWithTheFirstDifference) {
  const auto expect = [&](auto make, const std::vector<std::string>& words) {
    std::vector<std::string> texts(2);
    on_ranks(groups, [&](const Group& group) {
      const auto error = error_of([&] { Replica(group, make(group.rank()), {}); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
      expect_text(*error, words);
      texts[static_cast<std::size_t>(group.rank())] = error->what();
    });
    EXPECT_EQ(texts[0], texts[1]);
  };
  expect(
      [](int rank) {
        return torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::Linear(3, 4 + rank)).ptr();
      },
      {"rank 0 has parameter 1.weight Float[4, 3] on cpu",
       "rank 1 has parameter 1.weight Float[5, 3] on cpu"});
  expect(
      [](int rank) {
        auto layer = torch::nn::Linear(2, 3);
        if (rank == 1) layer->to(at::kDouble);
        return layer.ptr();
      },
      {"rank 1 has parameter weight Double[3, 2]"});
  expect([](int rank) { return torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(rank == 0)).ptr(); },
         {"rank 0 has parameter bias Float[3]", "rank 1 has no further one"});
}

TEST_F(Replicas, AModuleWithoutParametersIsRefused) {
  on_ranks(groups, [&](const Group& group) {
    EXPECT_EQ(test::kind_of([&] { Replica(group, torch::nn::ReLU().ptr(), {}); }),
              ErrorKind::invalid_argument);
  });
}

// The mean and the variance are reduced together. A graph that has saved them before can still run backward.
TEST_F(Replicas, BuffersOfOneDtypeShareACollectiveAndKeepTheirVersions) {
  for (const Buffers buffers : {Buffers::broadcast, Buffers::average}) {
    on_ranks(groups, [&](const Group& group) {
      auto module = std::make_shared<Normalized>();
      DistributedDataParallel ddp{group, module, Options{.buffers = buffers}};
      const at::Tensor first = ddp.forward(at::ones({4, 3}, at::kDouble)).sum();
      const at::Tensor second = ddp.forward(at::ones({4, 3}, at::kDouble)).sum();
      (first + second).backward();
      std::size_t averages = 0;
      for (const auto& core : collectives::CollectivesLayer::of(*group.agent())->all())
        if (core->name() == ddp.group().name())
          for (const auto& entry : core->failure().flight().records.entries)
            averages += entry.text.starts_with("all_reduce(avg, float64[3]") ? 1 : 0;
      EXPECT_EQ(averages, buffers == Buffers::average ? 2U : 0U);  // one for each forward
    });
  }
}

TEST_F(Replicas, BuffersAreSharedBeforeEachForwardInTraining) {
  for (const Buffers buffers : {Buffers::broadcast, Buffers::average, Buffers::local}) {
    on_ranks(groups, [&](const Group& group) {
      auto module = std::make_shared<Normalized>();
      DistributedDataParallel ddp{group, module, Options{.buffers = buffers}};
      const auto set = [&](double value) {
        const at::NoGradGuard no_grad;
        module->norm->running_mean.fill_(value + group.rank());
        module->norm->num_batches_tracked.fill_(7 + group.rank());
      };
      const auto mean = [&] { return module->norm->running_mean[0].item<double>(); };
      const auto count = [&] { return module->norm->num_batches_tracked.item<std::int64_t>(); };
      set(1);
      module->eval();
      ddp.forward(at::zeros({4, 3}, at::kDouble));
      EXPECT_EQ(mean(), 1 + group.rank());  // not in evaluation
      module->train();
      // Zeros have the mean 0, so a forward reduces the running mean by a tenth.
      ddp.forward(at::zeros({4, 3}, at::kDouble));
      const double before = buffers == Buffers::local     ? 1 + group.rank()
                            : buffers == Buffers::average ? 1.5
                                                          : 1;
      EXPECT_NEAR(mean(), before * 0.9, 1e-12);
      EXPECT_EQ(count(), buffers == Buffers::local ? 8 + group.rank() : 8);
    });
  }
}

// The hook adds up the buffers of both ranks. In the last iteration rank 0 has no batch.
TEST_F(Replicas, AHookSharesTheBuffers) {
  struct Counting : torch::nn::Module {
    Counting() {
      layer = register_module("layer", torch::nn::Linear(3, 1));
      seen = register_buffer("seen", at::zeros({1}));
    }
    at::Tensor forward(const at::Tensor& x) {
      seen.add_(x.size(0));
      return layer(x);
    }
    torch::nn::Linear layer{nullptr};
    at::Tensor seen;
  };
  for (const bool after_forward : {false, true}) {
    std::vector<float> expected{0, 0};
    std::vector<std::vector<float>> of_steps;
    for (int step = 0; step < 3; ++step) {
      const auto add_up = [&] { expected[0] = expected[1] = expected[0] + expected[1]; };
      if (!after_forward) add_up();
      for (std::size_t rank = 0; rank < 2; ++rank)
        if (step < 2 || rank == 1) expected[rank] += static_cast<float>(rank) + 1;
      if (after_forward) add_up();
      of_steps.push_back(expected);
    }
    on_ranks(groups, [&](const Group& group) {
      auto module = std::make_shared<Counting>();
      DistributedDataParallel ddp{group, module};
      const auto rank = static_cast<std::size_t>(group.rank());
      ddp.set_buffer_hook({.run =
                               [](const Group& of, const BufferHook::Buffers& buffers, int) {
                                 EXPECT_EQ(buffers.at(0).first, "seen");
                                 return of.all_reduce(buffers.at(0).second, collectives::ReduceOp::sum);
                               },
                           .after_forward = after_forward});
      std::vector<std::size_t> steps{0, 1};
      if (rank == 1) steps.push_back(2);
      for (const std::size_t step : ddp.join(steps)) {
        ddp.forward(at::ones({group.rank() + 1, 3})).sum().backward();
        EXPECT_EQ(module->seen.item<float>(), of_steps[step][rank]) << step;
        const auto guard = ddp.no_sync();
        module->eval();
        ddp.forward(at::zeros({0, 3}));
        module->train();
        EXPECT_EQ(module->seen.item<float>(), of_steps[step][rank]) << step;
      }
      const BufferHook broadcasts{.run = [](const Group& of, const BufferHook::Buffers& buffers, int source) {
        return of.broadcast(buffers.at(0).second, source);
      }};
      for (const BufferHook& hook : {broadcasts, BufferHook()}) {  // the default does the same
        ddp.set_buffer_hook(hook);
        module->seen.fill_(group.rank() + 1);
        ddp.forward(at::zeros({0, 3})).sum().backward();
        EXPECT_EQ(module->seen.item<float>(), 1);
      }
    });
  }
}

TEST_F(Replicas, AHookMayChangeBuffersThatTheGraphHasSaved) {
  on_ranks(groups, [&](const Group& group) {
    for (const bool after_forward : {false, true}) {
      auto module = std::make_shared<Normalized>();
      DistributedDataParallel ddp{group, module};
      ddp.set_buffer_hook({.run =
                               [](const Group& of, const BufferHook::Buffers& buffers, int) {
                                 EXPECT_EQ(buffers.at(0).first, "norm.running_mean");
                                 return of.all_reduce(buffers.at(0).second, collectives::ReduceOp::avg);
                               },
                           .after_forward = after_forward});
      const at::Tensor x = at::arange(12, at::kDouble).view({4, 3}) * (group.rank() + 1);
      (ddp.forward(x) + ddp.forward(x)).square().sum().backward();
      const auto means = group.all_gather_object(module->norm->running_mean[0].item<double>()).get();
      EXPECT_EQ(means[0] == means[1], after_forward);
    }
  });
}

TEST_F(Replicas, IgnoredParametersAndBuffersStayLocal) {
  on_ranks(groups, [&](const Group& group) {
    auto module = std::make_shared<Normalized>();
    {
      const at::NoGradGuard no_grad;
      module->norm->weight.fill_(group.rank() + 1);
      module->norm->running_mean.fill_(group.rank() + 1);
    }
    DistributedDataParallel ddp{group, module, Options{.ignored = {"norm.weight", "norm.running_mean"}}};
    ddp.forward(at::arange(12, at::kDouble).view({4, 3})).square().sum().backward();
    EXPECT_EQ(module->norm->weight[0].item<double>(), group.rank() + 1);
    const auto differ = [&](double value) {
      const auto values = group.all_gather_object(value).get();
      return values[0] != values[1];
    };
    EXPECT_TRUE(differ(module->norm->weight.grad()[0].item<double>()));
    EXPECT_TRUE(differ(module->norm->running_mean[0].item<double>()));
    EXPECT_FALSE(differ(module->norm->running_var[0].item<double>()));
  });
}

TEST_F(Replicas, AnUnknownNameIsRefused) {
  on_ranks(groups, [&](const Group& group) {
    expect_error([&] { Replica(group, std::make_shared<Net>(), {.ignored = {"frist.weight"}}); },
                 ErrorKind::invalid_argument, {"frist.weight"});
  });
}

TEST_F(Replicas, TheOrderOfMemoryIsCompared) {
  on_ranks(groups, [&](const Group& group) {
    auto conv = torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3));
    if (group.rank() == 1)
      conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    expect_error([&] { Replica(group, conv.ptr(), {}); }, {"with strides"});
  });
}

TEST_F(Replicas, HoldersAndSequencesAreAccepted) {
  on_ranks(groups, [&](const Group& group) {
    torch::nn::Linear layer(2, 2);
    DistributedDataParallel ddp{group, layer};
    ddp.forward(at::ones({1, 2})).sum().backward();
    torch::nn::Sequential layers(torch::nn::Linear(2, 2), torch::nn::ReLU());
    DistributedDataParallel sequence{group, layers};
    EXPECT_EQ(sequence.parameter_names(), (std::vector<std::string>{"0.weight", "0.bias"}));
  });
}

TEST_F(Replicas, FrozenParametersStartWithTheValuesOfRankZero) {
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>(1 + group.rank());
    net->first->weight.requires_grad_(false);
    DistributedDataParallel ddp{group, net};
    EXPECT_TRUE(at::equal(net->first->weight, Net(1).first->weight));
    ddp.forward(at::ones({1, 5}, at::kDouble)).sum().backward();
    EXPECT_FALSE(net->first->weight.grad().defined());
  });
}

}  // namespace
}  // namespace weft::data_parallel::replica_test
