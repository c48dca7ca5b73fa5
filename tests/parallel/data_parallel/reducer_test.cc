// Backwards of several ranks with parameters that some ranks do not reach, with accumulated gradients, and
// with failures.
#include <weft/parallel/data_parallel/internal/reducer.h>

#include <set>
#include <sstream>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::reducer_test {
namespace {

using namespace testing;

class OfTwoRanks : public OfRanks<2> {
 protected:
  // Runs f on both ranks, each with a replica of a Net.
  template <class F>
  void run(const Options& options, F f) {
    on_ranks(groups, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, options};
      f(group.rank(), ddp, *net);
    });
  }
  template <class F>
  void run(F f) {
    run(several_buckets, f);
  }
  static at::Tensor input(int rank) { return at::arange(10, at::kDouble).view({2, 5}) * (rank + 1) / 10; }
};

std::vector<at::Tensor> average(const std::function<void(Net&, int)>& f) { return means_of(2, f); }

TEST_F(OfTwoRanks, AParameterThatOneRankDoesNotReachGetsTheGradientOfTheOther) {
  const auto expected =
      average([&](Net& net, int rank) { net.forward(input(rank), rank == 1).sum().backward(); });
  for (const bool is_static : {false, true})
    run(with_static_graph(is_static), [&](int rank, auto& ddp, Net& net) {
      for (int i = 0; i < 4; ++i) {
        net.zero_grad();
        ddp.forward(input(rank), rank == 1).sum().backward();
        expect_gradients(net, expected);
      }
    });
}

TEST_F(OfTwoRanks, AParameterThatNoRankReachesStaysUndefinedAndItsBucketIsSkipped) {
  run([&](int rank, auto& ddp, Net& net) {
    for (int i = 0; i < 3; ++i) {
      net.zero_grad();
      ddp.forward(input(rank), false).sum().backward();
      EXPECT_FALSE(net.middle->weight.grad().defined());
      EXPECT_TRUE(net.first->weight.grad().defined());
    }
    EXPECT_GT(ddp.last().skipped, 0U);
    EXPECT_EQ(ddp.last().skipped + ddp.last().buckets.size(), ddp.plan().size());
  });
}

TEST_F(OfTwoRanks, AGradientThatNoRankReachesKeepsItsBits) {
  // In one bucket with the others.
  run({.bucket_bytes = {1 << 20}, .overlap = Overlap::group}, [&](int rank, auto& ddp, Net& net) {
    ddp.forward(input(rank)).sum().backward();
    for (const auto& gradient : {net.middle->weight.grad(), net.middle->bias.grad()})
      gradient.mul_(rank + 1);  // so that an average would change the bits
    const at::Tensor before = net.middle->weight.grad().clone();
    const at::Tensor bias = net.middle->bias.grad().clone();
    ddp.forward(input(rank), false).sum().backward();
    EXPECT_TRUE(at::equal(net.middle->weight.grad(), before));
    EXPECT_TRUE(at::equal(net.middle->bias.grad(), bias));
  });
}

TEST_F(OfTwoRanks, GradientsAreViewsOfBucketsAfterEitherFormOfZeroGrad) {
  run([&](int rank, auto& ddp, Net& net) {
    const auto buckets = [&] {
      std::set<const void*> storages;
      for (const auto& parameter : net.parameters()) storages.insert(parameter.grad().storage().data());
      return storages.size();
    };
    ddp.forward(input(rank)).sum().backward();
    for (const bool set_to_none : {false, true}) {
      net.zero_grad(set_to_none);
      ddp.forward(input(rank)).sum().backward();
      EXPECT_EQ(buckets(), ddp.plan().size());
    }
  });
}

TEST_F(OfTwoRanks, BackwardWithoutSyncAccumulatesUntilTheNextOneWithIt) {
  const auto expected = average([&](Net& net, int rank) {
    for (const int part : {0, 1, 2}) net.forward(input(3 * rank + part)).sum().backward();
  });
  run([&](int rank, auto& ddp, Net& net) {
    for (int i = 0; i < 3; ++i) {
      net.zero_grad(i % 2 == 0);
      {
        const auto guard = ddp.no_sync();
        {
          const torch::NoGradGuard no_grad;
          EXPECT_FALSE(ddp.forward(input(rank)).requires_grad());
        }
        for (const int part : {0, 1}) ddp.forward(input(3 * rank + part)).sum().backward();
      }
      ddp.forward(input(3 * rank + 2)).sum().backward();
      expect_gradients(net, expected);
    }
  });
}

TEST_F(OfTwoRanks, ABackwardOverTheSameGraphIsReducedAgain) {
  const auto once = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  run([&](int rank, auto& ddp, Net& net) {
    const at::Tensor loss = ddp.forward(input(rank)).sum();
    loss.backward({}, true);
    loss.backward();
    for (const auto& parameter : net.parameters()) parameter.grad().div_(2);
    expect_gradients(net, once);
  });
}

TEST_F(OfTwoRanks, GradientsOfOtherTensorsAreNotReduced) {
  run([&](int rank, auto& ddp, Net& net) {
    at::Tensor x = input(rank).requires_grad_();
    const auto gradients = torch::autograd::grad({ddp.forward(x).sum()}, {x});
    EXPECT_TRUE(gradients[0].defined());
    EXPECT_EQ(ddp.last().iteration, 0U);
    ddp.forward(x).sum().backward();
    EXPECT_EQ(ddp.last().iteration, 1U);
    (void)net;
  });
}

TEST_F(OfTwoRanks, GradientsOfAnActivationCheckpointAreReduced) {
  const auto expected = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, std::make_shared<Checkpointed>(net), several_buckets};
    for (int i = 0; i < 3; ++i) {
      net->zero_grad();
      ddp.forward(input(group.rank())).sum().backward();
      expect_gradients(*net, expected);
    }
  });
}

// A re-entrant checkpoint, as PyTorch's: its backward runs the engine again.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, std::int64_t layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = layer;
    const at::NoGradGuard no_grad;
    return torch::tanh((*reinterpret_cast<torch::nn::LinearImpl*>(layer)).forward(x));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode grad(true);
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    torch::tanh(layer->forward(x)).backward(gradients[0]);
    return {x.grad(), {}};
  }
};

struct TwiceReentrant : torch::nn::Module {
  explicit TwiceReentrant(std::shared_ptr<Net> n) { net = register_module("net", std::move(n)); }
  at::Tensor forward(at::Tensor x, bool checkpointed = true) {
    x = torch::tanh(net->first(x));
    for (int i = 0; i < 2; ++i)
      x = checkpointed ? Reentrant::apply(x, reinterpret_cast<std::int64_t>(net->middle.get()))
                       : torch::tanh(net->middle(x));
    return net->last(x);
  }
  std::shared_ptr<Net> net;
};

TEST_F(OfTwoRanks, AStaticGraphMayReachAParameterSeveralTimesByNestedBackwards) {
  const auto expected = average([&](Net& net, int rank) {
    TwiceReentrant twice(std::shared_ptr<Net>(&net, [](Net*) {}));
    twice.forward(input(rank), false).sum().backward();
  });
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, std::make_shared<TwiceReentrant>(net), with_static_graph(true)};
    for (int i = 0; i < 4; ++i) {
      net->zero_grad(i % 2 == 0);
      ddp.forward(input(group.rank())).sum().backward();
      expect_gradients(*net, expected);
    }
  });
}

TEST_F(OfTwoRanks, ANestedBackwardInAnotherGraphIsAnErrorThatNamesTheRemedy) {
  std::atomic<int> named = 0;
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, std::make_shared<TwiceReentrant>(net), several_buckets};
    const auto error = error_of([&] { ddp.forward(input(group.rank())).sum().backward(); });
    ASSERT_TRUE(error);
    if (error->kind() == ErrorKind::failed_precondition) {
      ++named;
      expect_text(*error, {"net.middle", "static_graph"});
    } else {
      EXPECT_EQ(error->kind(), ErrorKind::aborted) << error->what();  // the other rank failed first
    }
  });
  EXPECT_GE(named, 1);
}

TEST_F(OfTwoRanks, SparseGradientsAreGathered) {
  struct Table : torch::nn::Module {
    explicit Table(bool sparse) {
      table =
          register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(sparse)));
      const at::NoGradGuard no_grad;
      table->weight.copy_(at::arange(12).view({6, 2}));
      head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
      head->weight.fill_(2);
    }
    at::Tensor forward(at::Tensor rows) { return head(table(rows)); }
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear head{nullptr};
  };
  // Row 1 twice on rank 0, row 3 on both; rank 1 has a different number of rows.
  const auto rows = [](int rank) {
    return rank == 0 ? at::tensor({1, 1, 3, 0}, at::kLong) : at::tensor({3, 5}, at::kLong);
  };
  at::Tensor expected = at::zeros({6, 2});
  for (int rank = 0; rank < 2; ++rank) {
    Table table(false);
    table.forward(rows(rank)).sum().backward();
    expected += table.table->weight.grad() / 2;
  }
  on_ranks(groups, [&](const Group& group) {
    auto table = std::make_shared<Table>(true);
    DistributedDataParallel ddp{group, table, several_buckets};
    for (int i = 0; i < 3; ++i) {
      table->zero_grad();
      ddp.forward(rows(group.rank())).sum().backward();
      const at::Tensor gradient = table->table->weight.grad();
      ASSERT_TRUE(gradient.is_sparse());
      EXPECT_TRUE(at::allclose(gradient.to_dense(), expected));
      EXPECT_EQ(gradient._nnz(), 4);
    }
  });
}

TEST_F(OfTwoRanks, AFailedBackwardFailsThatOfTheOtherRank) {
  run([&](int rank, auto& ddp, Net& net) {
    const at::Tensor out = ddp.forward(input(rank));
    if (rank == 1)
      net.first->bias.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
    const auto begin = std::chrono::steady_clock::now();
    if (rank == 1) {
      EXPECT_ANY_THROW(out.sum().backward());
      return;
    }
    expect_error([&] { out.sum().backward(); }, ErrorKind::aborted, {"backward of rank 1 failed"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  });
}

TEST_F(OfTwoRanks, ARankWithOneBatchLessIsNamedWithinTheTimeout) {
  const auto hasty = company.groups({.timeout = std::chrono::milliseconds{300}});
  on_ranks(hasty, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, several_buckets};
    ddp.forward(input(group.rank())).sum().backward();
    if (group.rank() == 1) return;
    expect_error([&] { ddp.forward(input(0)).sum().backward(); }, ErrorKind::deadline_exceeded,
                 {"rank 1 (worker1)"});
  });
}

TEST_F(OfTwoRanks, AllRanksUseTheOrderOfRankZero) {
  struct Branches : torch::nn::Module {
    Branches() {
      for (const char* name : {"a", "b", "c"})
        layers.push_back(register_module(name, torch::nn::Linear(5, 5)));
    }
    at::Tensor forward(at::Tensor x, const std::vector<int>& order) {
      for (const int layer : order) x = torch::tanh(layers[static_cast<std::size_t>(layer)](x));
      return x;
    }
    std::vector<torch::nn::Linear> layers;
  };
  on_ranks(groups, [&](const Group& group) {
    auto module = std::make_shared<Branches>();
    DistributedDataParallel ddp{group, module, Options{.bucket_bytes = {1}, .overlap = Overlap::group}};
    const auto order = group.rank() == 0 ? std::vector{2, 0, 1} : std::vector{0, 1, 2};
    for (int i = 0; i < 3; ++i) ddp.forward(at::ones({1, 5}), order).sum().backward();
    const BucketPlan plan = ddp.plan();
    // The layer that rank 0 used last is first in the plan.
    std::vector<std::string> layers;
    for (const auto& bucket : plan) layers.push_back(ddp.parameter_names()[bucket[0]].substr(0, 1));
    EXPECT_EQ(layers, (std::vector<std::string>{"b", "b", "a", "a", "c", "c"}));
  });
}

TEST_F(OfTwoRanks, TheLastGradientsHaveASmallBucket) {
  on_ranks(groups, [&](const Group& group) {
    torch::nn::Sequential layers(torch::nn::Linear(5, 5), torch::nn::Linear(5, 5), torch::nn::Linear(5, 5));
    DistributedDataParallel ddp{group, layers.ptr(), Options{.bucket_bytes = {130, 10'000}}};
    for (int i = 0; i < 3; ++i) {  // with the plan before the first backward, and with the plan after it
      const BucketPlan plan = ddp.plan();
      ASSERT_EQ(plan.size(), 3U);
      std::set<std::string> last;
      for (const std::size_t index : plan.back()) last.insert(ddp.parameter_names()[index]);
      EXPECT_EQ(last, (std::set<std::string>{"0.bias", "0.weight"}));
      ddp.forward(at::ones({1, 5})).sum().backward();
    }
  });
}

// Only the accumulation computes a gradient of the middle layer.
TEST_F(OfTwoRanks, AGradientOfAnAccumulationIsReducedAlsoIfTheLastBackwardDoesNotReachIt) {
  const auto expected = average([&](Net& net, int rank) {
    net.forward(input(rank)).sum().backward();
    net.forward(input(rank + 2), false).sum().backward();
  });
  run([&](int rank, auto& ddp, Net& net) {
    for (int i = 0; i < 3; ++i) {
      net.zero_grad(i % 2 == 0);
      {
        const auto guard = ddp.no_sync();
        ddp.forward(input(rank)).sum().backward();
      }
      ddp.forward(input(rank + 2), false).sum().backward();
      expect_gradients(net, expected);
    }
  });
}

// The loss uses a parameter itself: its gradient is ready before the first node behind an output runs.
TEST_F(OfTwoRanks, AParameterThatTheLossUsesIsReduced) {
  const auto loss = [](const at::Tensor& out, Net& net, int rank) {
    return out.sum() * net.last->bias.exp().sum() + (rank + 1) * net.middle->bias.sum();
  };
  const auto expected =
      average([&](Net& net, int rank) { loss(net.forward(input(rank)), net, rank).backward(); });
  for (const bool is_static : {false, true})
    run(with_static_graph(is_static), [&](int rank, auto& ddp, Net& net) {
      for (int i = 0; i < 3; ++i) {
        net.zero_grad();
        loss(ddp.forward(input(rank)), net, rank).backward();
        expect_gradients(net, expected);
      }
    });
}

TEST_F(OfTwoRanks, AModuleWithTwoNamesIsReducedOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      layer = register_module("encoder", torch::nn::Linear(5, 5));
      register_module("decoder", layer);
    }
    at::Tensor forward(const at::Tensor& x) { return layer(torch::tanh(layer(x))); }
    torch::nn::Linear layer{nullptr};
  };
  std::vector<at::Tensor> expected{at::zeros({5, 5}), at::zeros({5})};
  const auto reset = [](Tied& tied) {
    const at::NoGradGuard no_grad;
    tied.layer->weight.copy_(at::arange(25).view({5, 5}) / 50);
    tied.layer->bias.fill_(0.1);
  };
  for (int rank = 0; rank < 2; ++rank) {
    Tied alone;
    reset(alone);
    alone.forward(input(rank).to(at::kFloat)).sum().backward();
    expected[0] += alone.layer->weight.grad() / 2;
    expected[1] += alone.layer->bias.grad() / 2;
  }
  on_ranks(groups, [&](const Group& group) {
    auto tied = std::make_shared<Tied>();
    reset(*tied);
    DistributedDataParallel ddp{group, tied, Options{.bucket_bytes = {1}, .overlap = Overlap::group}};
    EXPECT_EQ(ddp.parameter_names().size(), 2U);
    for (int i = 0; i < 5; ++i) {
      tied->zero_grad();
      ddp.forward(input(group.rank()).to(at::kFloat)).sum().backward();
      expect_close({tied->layer->weight.grad(), tied->layer->bias.grad()}, expected, 1e-5);
    }
  });
}

// A parameter without gaps keeps its strides in the bucket; other dtypes have separate buckets.
TEST_F(OfTwoRanks, StridesAndDtypesOfParametersAreKept) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 3).bias(false)));
      conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
      phase = register_parameter("phase", at::ones({3}, at::kComplexDouble));
      scale = register_parameter("scale", at::ones({3}, at::kBFloat16));
    }
    at::Tensor forward(const at::Tensor& x) {
      return conv(x).sum({0, 2, 3}) * at::real(phase).to(at::kFloat) * scale.to(at::kFloat);
    }
    torch::nn::Conv2d conv{nullptr};
    at::Tensor phase, scale;
  };
  on_ranks(groups, [&](const Group& group) {
    auto mixed = std::make_shared<Mixed>();
    DistributedDataParallel ddp{group, mixed};
    EXPECT_EQ(ddp.plan().size(), 3U);
    const auto of_rank = [&](int rank, Mixed& module, auto& forward) {
      module.zero_grad();
      forward.forward(at::ones({1, 2, 4, 4}) * (rank + 1)).sum().backward();
      return std::vector<at::Tensor>{module.conv->weight.grad().clone(), module.phase.grad().clone(),
                                     module.scale.grad().clone()};
    };
    std::vector<at::Tensor> means;
    {
      const auto guard = ddp.no_sync();
      auto a = of_rank(0, *mixed, *mixed), b = of_rank(1, *mixed, *mixed);
      for (std::size_t i = 0; i < a.size(); ++i) means.push_back((a[i] + b[i]) / 2);
    }
    const auto reduced = of_rank(group.rank(), *mixed, ddp);
    for (std::size_t i = 0; i < means.size(); ++i) EXPECT_TRUE(at::allclose(reduced[i], means[i], 1e-2)) << i;
    EXPECT_TRUE(mixed->conv->weight.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

TEST_F(OfTwoRanks, TwoReplicasInOneBackwardDoNotMixTheirBuckets) {
  on_ranks(groups, [&](const Group& group) {
    auto first = std::make_shared<Net>(1), second = std::make_shared<Net>(1);
    DistributedDataParallel a{group, first, several_buckets}, b{group, second, several_buckets};
    for (int i = 0; i < 20; ++i) {
      first->zero_grad();
      second->zero_grad();
      (a.forward(input(group.rank()), false) + b.forward(input(group.rank()))).sum().backward();
      EXPECT_TRUE(at::allclose(first->last->bias.grad(), second->last->bias.grad()));
      EXPECT_FALSE(first->middle->bias.grad().defined());
    }
  });
}

// Reaches a tensor in backward, and gives it no gradient.
struct Undefined : torch::autograd::Function<Undefined> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

// Autograd leaves the gradient undefined on no rank, on rank 0, or on both ranks.
TEST_F(OfTwoRanks, AGradientThatAutogradLeavesUndefinedOnAllRanksStaysSo) {
  const auto loss_of = [](auto& forward, Net& net, int rank, bool is_undefined) {
    const at::Tensor parts = net.middle->weight * (rank + 1);
    const at::Tensor out = forward.forward(input(rank), false).sum();
    return out + (is_undefined ? Undefined::apply(parts) : parts).sum();
  };
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 20})
    for (const int undefined_ranks : {0, 1, 2}) {
      const auto expected =
          average([&](Net& net, int rank) { loss_of(net, net, rank, rank < undefined_ranks).backward(); });
      EXPECT_EQ(expected[2].defined(), undefined_ranks < 2);
      run({.bucket_bytes = {bytes}, .overlap = Overlap::group}, [&](int rank, auto& ddp, Net& net) {
        for (int i = 0; i < 3; ++i) {
          net.zero_grad();
          loss_of(ddp, net, rank, rank < undefined_ranks).backward();
          expect_gradients(net, expected);
        }
        net.zero_grad(false);  // an existing gradient keeps its bits
        net.middle->weight.mutable_grad() = at::full({7, 7}, rank + 1, at::kDouble);
        if (undefined_ranks < 2) return;
        loss_of(ddp, net, rank, true).backward();
        EXPECT_TRUE(at::equal(net.middle->weight.grad(), at::full({7, 7}, rank + 1, at::kDouble)));
      });
    }
}

TEST_F(OfTwoRanks, AStaticGraphThatChangesIsAnErrorThatNamesTheParameters) {
  for (const bool grows : {true, false}) {
    std::atomic<int> named = 0;
    run(with_static_graph(true), [&](int rank, auto& ddp, Net&) {
      for (int i = 0; i < 2; ++i) ddp.forward(input(rank), !grows).sum().backward();
      const auto error = error_of([&] { ddp.forward(input(rank), grows).sum().backward(); });
      ASSERT_TRUE(error);
      if (error->kind() != ErrorKind::failed_precondition) return;  // the other rank was first
      ++named;
      expect_text(*error, {"middle.", "static_graph"});
    });
    EXPECT_GE(named, 1);
  }
}

TEST_F(OfTwoRanks, AnIterationReportsWhetherTheGraphIsStatic) {
  run([&](int rank, auto& ddp, Net&) {
    for (const bool all : {false, false, true, false}) {
      ddp.forward(input(rank), all || rank == 1).sum().backward();
      EXPECT_EQ(ddp.last().is_static, rank == 1 || ddp.last().iteration < 3);
    }
  });
}

TEST_F(OfTwoRanks, ForwardDecidesWhetherItsBackwardIsReduced) {
  const auto expected = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  run([&](int rank, auto& ddp, Net& net) {
    Net alone;
    alone.forward(input(rank)).sum().backward();
    const auto own = gradients_of(alone);
    for (int i = 0; i < 2; ++i) {
      net.zero_grad();
      at::Tensor loss = [&] {
        const auto guard = ddp.no_sync();
        return ddp.forward(input(rank)).sum();
      }();
      loss.backward();
      expect_gradients(net, own);
      net.zero_grad();
      loss = ddp.forward(input(rank)).sum();
      const auto guard = ddp.no_sync();
      loss.backward();
      expect_gradients(net, expected);
    }
  });
}

TEST_F(OfTwoRanks, AForwardWithoutSyncLeavesOtherForwardsReduced) {
  const auto expected = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  const auto both = [](bool all) {
    return average([&](Net& net, int rank) {
      (net.forward(input(rank), all).sum() + net.forward(input(rank + 2), !all).sum()).backward();
    });
  };
  const auto of_both = both(true), of_both_the_other_way = both(false);
  run([&](int rank, auto& ddp, Net& net) {
    const auto without_sync = [&](bool all) {
      const auto guard = ddp.no_sync();
      return ddp.forward(input(rank + 2), all).sum();
    };
    for (const bool all : {true, false}) {
      net.zero_grad();
      const at::Tensor a = ddp.forward(input(rank)).sum();
      without_sync(all);
      a.backward();
      expect_gradients(net, expected);
    }
    for (const bool all : {true, false})
      for (const bool first : {true, false}) {  // backward reaches the forward without sync first, or last
        net.zero_grad();
        const at::Tensor early = first ? ddp.forward(input(rank), all).sum() : without_sync(!all);
        const at::Tensor late = first ? without_sync(!all) : ddp.forward(input(rank), all).sum();
        (early + late).backward();
        expect_gradients(net, all ? of_both : of_both_the_other_way);
      }
    Net alone;
    alone.forward(input(rank + 2)).sum().backward();
    const auto own = gradients_of(alone);
    net.zero_grad();
    const at::Tensor kept = ddp.forward(input(rank)).sum();
    without_sync(true).backward();
    expect_gradients(net, own);
    net.zero_grad();
    net.forward(input(rank + 2)).sum().backward();  // of the bare module
    expect_gradients(net, own);
    net.zero_grad();
    kept.backward();
    expect_gradients(net, expected);
  });
}

TEST_F(OfTwoRanks, AnOutputMayBeAParameter) {
  struct Latent : torch::nn::Module {
    Latent() { w = register_parameter("w", at::ones({3}, at::kDouble)); }
    at::Tensor forward() { return w; }
    at::Tensor w;
  };
  on_ranks(groups, [&](const Group& group) {
    auto latent = std::make_shared<Latent>();
    DistributedDataParallel ddp{group, latent};
    for (int i = 0; i < 3; ++i) {
      latent->zero_grad();
      (ddp.forward() * (group.rank() + 1)).sum().backward();
      expect_close({latent->w.grad()}, {at::full({3}, 1.5, at::kDouble)});
      latent->zero_grad();
      (latent->w * (group.rank() + 1)).sum().backward();  // not of a forward
      expect_close({latent->w.grad()}, {at::full({3}, group.rank() + 1, at::kDouble)});
    }
  });
}

// --- What the program does with the parameters after they were wrapped ---

// Trains a Net on the ranks' batches, and in one process. before(net, step) is called before each step.
class Changing : public OfTwoRanks {
 protected:
  template <class F>
  void expect_equal_training(F before, const Options& options, int steps = 6, double tolerance = 1e-10) {
    const auto train = [&](Net& net, auto& forward, int step, const Batch& batch) {
      before(net, step);
      net.zero_grad();
      torch::mse_loss(forward.forward(batch.data).to(at::kDouble), batch.target).backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net.parameters())
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    };
    Net alone;
    before(alone, 0);
    for (int step = 0; step < steps; ++step) train(alone, alone, step, Batch::of_step(step, 2));
    on_ranks(groups, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      before(*net, 0);
      DistributedDataParallel ddp{group, net, options};
      for (int step = 0; step < steps; ++step)
        train(*net, ddp, step, Batch::of_step(step, 2).part(group.rank(), 2));
      expect_close(values_of(*net), values_of(alone), tolerance);
    });
  }
  static std::vector<Options> kinds() {
    return {several_buckets,
            {.bucket_bytes = {200}, .overlap = Overlap::after, .static_graph = true},
            {.bucket_bytes = {1 << 20}, .overlap = Overlap::caller}};
  }
};

TEST_F(Changing, LayersMayBeUnfrozenOneAfterTheOther) {
  for (const Options& options : kinds())
    expect_equal_training(
        [](Net& net, int step) {
          for (at::Tensor& parameter : net.middle->parameters()) parameter.requires_grad_(step >= 2);
          net.first->bias.requires_grad_(step >= 4);
        },
        options);
}

TEST_F(Changing, ParametersMayBeFrozenAndUnfrozen) {
  for (const Options& options : kinds())
    expect_equal_training(
        [](Net& net, int step) {
          for (at::Tensor& parameter : net.middle->parameters()) parameter.requires_grad_(step % 2 == 0);
          for (at::Tensor& parameter : net.last->parameters()) parameter.requires_grad_(step != 3);
        },
        options);
}

// As the two networks of a GAN: the gradients of two forwards, each with other trained parameters.
TEST_F(Changing, PartsMayBeTrainedInTurn) {
  const auto train_first = [](Net& net, bool first) {
    for (at::Tensor& parameter : net.first->parameters()) parameter.requires_grad_(first);
    for (at::Tensor& parameter : net.middle->parameters()) parameter.requires_grad_(!first);
  };
  const auto loss = [&](Net& net, auto& forward, bool first, const Batch& batch) {
    train_first(net, first);
    return torch::mse_loss(forward.forward(batch.data), batch.target);
  };
  const auto backward_of_both = [&](Net& net, auto& forward, const Batch& one, const Batch& other) {
    const at::Tensor first = loss(net, forward, true, one);
    const at::Tensor second = loss(net, forward, false, other);
    for (at::Tensor& parameter : net.parameters()) parameter.requires_grad_(true);
    (first + second).backward();
  };
  Net alone;
  backward_of_both(alone, alone, Batch::of_step(0, 2), Batch::of_step(1, 2));
  for (const bool is_static : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      train_first(*net, true);
      DistributedDataParallel ddp{group, net, with_static_graph(is_static)};
      const Batch one = Batch::of_step(0, 2).part(group.rank(), 2),
                  other = Batch::of_step(1, 2).part(group.rank(), 2);
      if (is_static) {
        expect_error([&] { backward_of_both(*net, ddp, one, other); },
                     {"did not require grad at the last forward"});
        return;
      }
      backward_of_both(*net, ddp, one, other);
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        expect_close({net->parameters()[i].grad()}, {alone.parameters()[i].grad()}, 1e-10);
      loss(*net, ddp, true, one).backward();
      const BucketPlan plan = ddp.plan();
      loss(*net, ddp, false, other).backward();
      EXPECT_EQ(ddp.plan(), plan) << "no plan for each turn";
    });
}

TEST_F(Changing, ParametersInLowPrecisionMayBeUnfrozen) {
  expect_equal_training(
      [](Net& net, int step) {
        for (at::Tensor& parameter : net.middle->parameters()) parameter.requires_grad_(step >= 2);
      },
      {.mixed_precision = {.parameters = at::kFloat}}, 5, 1e-5);
}

TEST_F(Changing, WeightsMayBeLoaded) {
  std::string file;
  {
    std::ostringstream out;
    auto other = std::make_shared<Net>(7);
    torch::save(other, out);
    file = out.str();
  }
  const auto load = [&](Net& net, int step) {
    if (step != 2) return;
    std::istringstream in(file);
    std::shared_ptr<Net> not_owned(&net, [](Net*) {});
    torch::load(not_owned, in);
  };
  for (const Options& options : kinds()) expect_equal_training(load, options);
  expect_equal_training(load, {.mixed_precision = {.parameters = at::kFloat}}, 5, 1e-5);
}

TEST_F(Changing, TheOrderOfMemoryMayChange) {
  expect_equal_training(
      [](Net& net, int step) {
        at::Tensor& weight = net.middle->weight;
        if (step == 3) weight.set_data(weight.detach().t().contiguous().t());
      },
      several_buckets);
}

TEST_F(Changing, ADifferenceBetweenTheRanksIsRefusedOnBoth) {
  enum Change { unfreezes, transposes, converts };
  for (const Change change : {unfreezes, transposes, converts})
    for (const bool is_static : {false, true}) {
      const auto hasty = company.groups({.timeout = std::chrono::seconds{20}});
      on_ranks(hasty, [&](const Group& group) {
        auto net = std::make_shared<Net>();
        net->middle->weight.requires_grad_(false);
        DistributedDataParallel ddp{group, net, with_static_graph(is_static)};
        const auto step = [&] { ddp.forward(input(group.rank())).sum().backward(); };
        for (int i = 0; i < 2; ++i) step();
        at::Tensor& weight = net->last->weight;
        if (group.rank() == 1 && change == unfreezes) net->middle->weight.requires_grad_(true);
        if (group.rank() == 1 && change == transposes) weight.set_data(weight.detach().t().contiguous().t());
        if (group.rank() == 1 && change == converts) {
          net->zero_grad();
          net->to(at::kFloat);
        }
        const auto error = error_of(step);
        ASSERT_TRUE(error);
        EXPECT_NE(error->kind(), ErrorKind::deadline_exceeded) << error->what();
        if (!is_static && change != converts) expect_text(*error, {"the ranks reduce different parameters"});
        if (change == converts) expect_text(*error, {"has changed its dtype"});
      });
    }
}

TEST_F(OfTwoRanks, AnIterationHasTheNameOfItsHook) {
  struct Plain : CommunicationHook {
    std::optional<rpc::Future<void>> run(const Group& group, GradientBucket& bucket, int step) override {
      return step == 0 ? std::optional(all_reduce_average(group, bucket.buffer)) : std::nullopt;
    }
  };
  run([&](int rank, auto& ddp, Net&) {
    ddp.forward(input(rank)).sum().backward();
    EXPECT_EQ(ddp.last().hook, "all_reduce");
    ddp.set_hook(std::make_shared<Plain>());
    ddp.forward(input(rank)).sum().backward();
    EXPECT_EQ(ddp.last().hook, "Plain");
    EXPECT_NE(ddp.last_table().find("hook Plain"), std::string::npos);
  });
}

// Rank 1 never calls backward.
TEST_F(OfTwoRanks, DestroyingAReplicaFailsTheBackwardOfTheOtherRank) {
  on_ranks(groups, [&](const Group& group) {
    const auto train = [&](bool destroys) {
      DistributedDataParallel ddp{group, std::make_shared<Net>(), several_buckets};
      ddp.forward(input(group.rank())).sum().backward();
      const at::Tensor loss = ddp.forward(input(group.rank())).sum();
      if (group.rank() == 0) {
        loss.backward();
      } else if (destroys) {
        throw std::runtime_error("of the loss");
      } else {
        ddp.abort("no memory");
        throw std::runtime_error("of the loss");
      }
    };
    for (const bool destroys : {true, false}) {
      if (group.rank() == 1) {
        EXPECT_THROW(train(destroys), std::runtime_error);
        continue;
      }
      const auto error = error_of([&] { train(destroys); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::aborted) << error->what();
      expect_text(*error, {"rank 1 has left the iteration", destroys ? "an exception" : "no memory"});
    }
  });
}

TEST_F(OfTwoRanks, MisuseIsNamed) {
  run([&](int rank, auto& ddp, Net& net) {
    const auto graph = error_of([&] { ddp.forward(input(rank)).sum().backward({}, false, true); });
    ASSERT_TRUE(graph);
    EXPECT_TRUE(graph->kind() == ErrorKind::failed_precondition || graph->kind() == ErrorKind::aborted);
    net.zero_grad();  // the gradients refer to the parameters
    net.to(at::kFloat);
    expect_error([&] { ddp.forward(input(rank).to(at::kFloat)); }, ErrorKind::failed_precondition,
                 {"first.weight has changed"});
  });
}

TEST_F(OfTwoRanks, TrainingContinuesInANewGroupAfterAFailure) {
  const auto others = company.groups({.name = "second"});
  const auto expected = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  run({.bucket_bytes = {200}}, [&](int rank, auto& ddp, Net& net) {
    ddp.forward(input(rank)).sum().backward();
    if (rank == 1) {
      const auto hook = net.last->bias.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("mine"); });
      EXPECT_ANY_THROW(ddp.forward(input(rank)).sum().backward());
      net.last->bias.remove_hook(hook);
    } else {
      EXPECT_ANY_THROW(ddp.forward(input(rank)).sum().backward());
    }
    ddp.set_group(others[static_cast<std::size_t>(rank)]);
    for (int i = 0; i < 15; ++i) {  // beyond the trial of overlaps
      net.zero_grad();
      ddp.forward(input(rank)).sum().backward();
      expect_gradients(net, expected);
    }
  });
}

TEST_F(OfTwoRanks, ANewGroupInheritsTheBuckets) {
  const auto others = company.groups({.name = "second"});
  const auto expected = average([&](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  run([&](int rank, auto& ddp, Net& net) {
    ddp.forward(input(rank)).sum().backward();
    ddp.set_group(others[static_cast<std::size_t>(rank)]);
    expect_gradients(net, expected);
    net.zero_grad(false);
    ddp.forward(input(rank)).sum().backward();
    expect_gradients(net, expected);
  });
}

}  // namespace
}  // namespace weft::data_parallel::reducer_test
