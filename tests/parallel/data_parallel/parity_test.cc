// Behaviours that PyTorch's and Horovod's suites test and no other file here asserts (tests/parity/ddp.tsv).
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>
#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>
#include <weft/parallel/data_parallel/sync_batch_norm.h>
#include <weft/parallel/training/broadcast_state.h>

#include <array>
#include <functional>
#include <optional>
#include <tuple>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::parity_test {
namespace {

using namespace testing;
using Tensors = std::vector<at::Tensor>;

at::Tensor input(int rank) { return at::arange(10, at::kDouble).view({2, 5}) * (rank + 1) / 10; }

// Sets values that are equal on all ranks and in one process.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double start = -0.5;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(at::linspace(start, start + 1, parameter.numel(), at::kDouble).view_as(parameter));
    start += 0.3;
  }
}

class ReplicaParity : public OfRanks<2> {};

// --- Modules, arguments and outputs ---

TEST_F(ReplicaParity, AParameterMayHaveNoElements) {
  on_ranks(groups, [](const Group& group) {
    torch::nn::Sequential layers(torch::nn::Linear(5, 5), torch::nn::Linear(5, 0));
    layers->to(at::kDouble);
    DistributedDataParallel ddp{group, layers};
    EXPECT_EQ(ddp.forward(input(group.rank())).numel(), 0);
    EXPECT_EQ(ddp.parameter_names().size(), 4U);
  });
}

// A module with an ignored parameter and an ignored buffer, whose shapes differ between ranks, and with a
// frozen parameter.
struct Proxy : torch::nn::Module {
  explicit Proxy(int rank) {
    first = register_module("first", torch::nn::Linear(5, 3));
    first->to(at::kDouble);
    first->bias.requires_grad_(false);
    own = register_parameter("own", at::ones({rank + 1}, at::kDouble));
    counts = register_buffer("counts", at::zeros({rank + 2}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x, int rank) { return first(x).sum() + own.sum() * (rank + 1); }
  torch::nn::Linear first{nullptr};
  at::Tensor own, counts;
};

TEST_F(ReplicaParity, IgnoredAndFrozenParametersAreNotReduced) {
  const at::Tensor expected = ((input(0) + input(1)) / 2).sum(0).expand({3, 5});
  for (const bool is_static : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto proxy = std::make_shared<Proxy>(group.rank());
      Options options = with_static_graph(is_static);
      options.ignored = {"own", "counts"};
      DistributedDataParallel ddp{group, proxy, options};
      EXPECT_EQ(ddp.parameter_names(), (std::vector<std::string>{"first.weight", "first.bias"}));
      EXPECT_EQ(ddp.plan(), (BucketPlan{{0}}));
      for (int i = 0; i < 3; ++i) {
        proxy->zero_grad();
        ddp.forward(input(group.rank()), group.rank()).backward();
        expect_close({proxy->first->weight.grad()}, {expected});
        expect_close({proxy->own.grad()}, {at::full({group.rank() + 1}, group.rank() + 1, at::kDouble)});
        EXPECT_FALSE(proxy->first->bias.grad().defined());
      }
    });
}

// A parameter that no rank uses, under two names.
struct TiedUnused : torch::nn::Module {
  TiedUnused() {
    tied = register_module("encoder", torch::nn::Linear(5, 5));
    register_module("decoder", tied);
    used = register_module("used", torch::nn::Linear(5, 2));
    to(at::kDouble);
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return used(x).sum(); }
  torch::nn::Linear tied{nullptr}, used{nullptr};
};

TEST_F(ReplicaParity, AnUnusedParameterMayHaveTwoNames) {
  const at::Tensor expected = ((input(0) + input(1)) / 20).sum(0).expand({2, 5});
  for (const bool is_static : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto module = std::make_shared<TiedUnused>();
      DistributedDataParallel ddp{group, module, with_static_graph(is_static)};
      EXPECT_EQ(ddp.parameter_names().size(), 4U);
      for (int i = 0; i < 4; ++i) {
        module->zero_grad();
        at::Tensor loss = ddp.forward(input(group.rank()));
        loss /= 10;
        loss.backward();
        EXPECT_FALSE(module->tied->weight.grad().defined());
        expect_close({module->used->weight.grad()}, {expected});
      }
    });
}

struct Pair {
  at::Tensor a, b;
};
WEFT_CODEC(Pair, a, b)

// A module whose argument and output are structs.
struct Heads : torch::nn::Module {
  Heads() {
    a = register_module("a", torch::nn::Linear(5, 3));
    b = register_module("b", torch::nn::Linear(5, 3));
    to(at::kDouble);
    fill(*this);
  }
  Pair forward(const Pair& x) { return {a(x.a), b(x.b)}; }
  torch::nn::Linear a{nullptr}, b{nullptr};
};

TEST_F(ReplicaParity, AnOutputThatTheLossDoesNotUseLeavesItsGradients) {
  const auto pair_of = [](int rank) { return Pair{input(rank), input(rank + 1)}; };
  const auto loss_of = [](const Pair& out, int step) {
    return step == 1 || step == 2 ? (out.a * out.b).sum() : out.b.sum();
  };
  constexpr int steps = 6;
  const std::vector<std::shared_ptr<Heads>> alone{std::make_shared<Heads>(), std::make_shared<Heads>()};
  std::vector<Tensors> expected;
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < 2; ++rank)
      loss_of(alone[static_cast<std::size_t>(rank)]->forward(pair_of(rank)), step).backward();
    expected.push_back(mean_gradients(alone));
  }
  EXPECT_FALSE(expected[0][0].defined());
  on_ranks(groups, [&](const Group& group) {
    auto heads = std::make_shared<Heads>();
    DistributedDataParallel ddp{group, heads, several_buckets};
    for (int step = 0; step < steps; ++step) {
      loss_of(ddp.forward(pair_of(group.rank())), step).backward();
      expect_gradients(*heads, expected[static_cast<std::size_t>(step)]);
    }
  });
}

// Nested outputs: one without a gradient, and a tensor that forward makes and gets back.
struct Nested : torch::nn::Module {
  Nested() { net = register_module("net", std::make_shared<Net>()); }
  std::tuple<at::Tensor, Tensors, std::optional<at::Tensor>> forward(const at::Tensor& x,
                                                                     const std::optional<at::Tensor>& state) {
    const at::Tensor y = net->forward(x);
    return {y.detach(), Tensors{y, 2 * y}, state ? *state : at::ones({1}, at::kDouble)};
  }
  std::shared_ptr<Net> net;
};

TEST_F(ReplicaParity, OutputsMayBeNestedAndNeedNoGradient) {
  const Tensors expected =
      means_of(2, [](Net& net, int rank) { (3 * net.forward(input(rank)).sum()).backward(); });
  for (const bool is_static : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto nested = std::make_shared<Nested>();
      DistributedDataParallel ddp{group, nested, with_static_graph(is_static)};
      std::optional<at::Tensor> state;
      for (int i = 0; i < 4; ++i) {
        nested->zero_grad();
        const auto [detached, list, next] = ddp.forward(input(group.rank()), state);
        EXPECT_FALSE(detached.requires_grad());
        state = next;
        EXPECT_FALSE(state->requires_grad());
        (detached.sum() + list[0].sum() + list[1].sum()).backward();
        expect_gradients(*nested, expected);
      }
    });
}

// --- Graphs ---

TEST_F(ReplicaParity, TheControlFlowMayChangeInEachIteration) {
  // By step: whether ranks 0 and 1 use all layers.
  const std::vector<std::array<bool, 2>> uses{{true, true},  {false, false}, {true, false},
                                              {false, true}, {true, true},   {false, false}};
  std::vector<Tensors> expected;
  for (const auto& use : uses)
    expected.push_back(means_of(2, [&](Net& net, int rank) {
      net.forward(input(rank), use[static_cast<std::size_t>(rank)]).sum().backward();
    }));
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, several_buckets};
    for (std::size_t i = 0; i < uses.size(); ++i) {
      net->zero_grad();
      ddp.forward(input(group.rank()), uses[i][static_cast<std::size_t>(group.rank())]).sum().backward();
      expect_gradients(*net, expected[i]);
    }
  });
}

TEST_F(ReplicaParity, TwoForwardsMayHaveOneBackward) {
  const Tensors expected = means_of(2, [](Net& net, int rank) {
    (net.forward(input(rank)).sum() + net.forward(input(rank + 2)).sum()).backward();
  });
  for (const bool is_static : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, with_static_graph(is_static)};
      for (int i = 0; i < 3; ++i) {
        net->zero_grad();
        const at::Tensor a = ddp.forward(input(group.rank())), b = ddp.forward(input(group.rank() + 2));
        (a.sum() + b.sum()).backward();
        expect_gradients(*net, expected);
      }
    });
}

// --- Accumulation and hooks ---

// Each micro-batch of each rank uses another layer.
struct Branches : torch::nn::Module {
  Branches() {
    for (const char* name : {"a", "b", "c", "d"})
      layers.push_back(register_module(name, torch::nn::Linear(5, 2)));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x, std::size_t layer) { return layers[layer](x); }
  std::vector<torch::nn::Linear> layers;
};

TEST_F(ReplicaParity, GradientsOfAnAccumulationAreEqualOnAllRanks) {
  on_ranks(groups, [](const Group& group) {
    const int rank = group.rank();
    auto branches = std::make_shared<Branches>();
    DistributedDataParallel ddp{group, branches, several_buckets};
    const auto first = static_cast<std::size_t>(2 * rank);
    {
      const auto guard = ddp.no_sync();
      ddp.forward(input(rank), first).sum().backward();
    }
    ddp.forward(input(rank), first + 1).sum().backward();
    for (std::size_t layer = 0; layer < 4; ++layer)
      expect_close({branches->layers[layer]->weight.grad()},
                   {(input(layer < 2 ? 0 : 1) / 2).sum(0).expand({2, 5})});
  });
}

// Averages in two steps, of which the second one has no effect.
struct InTwoSteps : CommunicationHook {
  std::optional<rpc::Future<void>> run(const Group& group, GradientBucket& bucket, int step) override {
    if (step > 1) return std::nullopt;
    return group.all_reduce(bucket.buffer, collectives::ReduceOp::avg);
  }
};

TEST_F(ReplicaParity, AHookReducesAnAccumulation) {
  const Tensors expected = means_of(2, [](Net& net, int rank) {
    net.forward(input(rank)).sum().backward();
    net.forward(input(rank + 2)).sum().backward();
  });
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, several_buckets};
    ddp.set_hook(std::make_shared<InTwoSteps>());
    for (int i = 0; i < 4; ++i) {
      net->zero_grad();
      {
        const auto guard = ddp.no_sync();
        ddp.forward(input(group.rank())).sum().backward();
      }
      ddp.forward(input(group.rank() + 2)).sum().backward();
      expect_gradients(*net, expected);
    }
  });
}

// --- Evaluation, buffers, failures and groups ---

TEST_F(ReplicaParity, OneRankMayEvaluateAlone) {
  const auto norm_groups = company.groups({.name = "norms"});
  on_ranks(groups, [&](const Group& group) {
    const Group& of_norm = norm_groups[static_cast<std::size_t>(group.rank())];
    torch::nn::Sequential layers(torch::nn::Linear(5, 3), torch::nn::BatchNorm1d(3),
                                 SyncBatchNorm(torch::nn::BatchNormOptions(3), of_norm));
    layers->to(at::kDouble);
    DistributedDataParallel ddp{group, layers};
    if (group.rank() == 1) return;
    layers->eval();
    for (const bool recorded : {false, true}) {
      const at::AutoGradMode mode(recorded);
      const at::Tensor output = ddp.forward(input(0));
      EXPECT_EQ(output.requires_grad(), recorded);
      expect_close({output}, {layers->forward(input(0))}, 0);
    }
  });
}

TEST_F(ReplicaParity, LocalBuffersStartAsRankZeros) {
  struct Shifted : torch::nn::Module {
    explicit Shifted(int rank) {
      layer = register_module("layer", torch::nn::Linear(5, 2));
      layer->to(at::kDouble);
      shift = register_buffer("shift", at::full({2}, rank + 1, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) { return layer(x) + shift; }
    torch::nn::Linear layer{nullptr};
    at::Tensor shift;
  };
  on_ranks(groups, [](const Group& group) {
    auto module = std::make_shared<Shifted>(group.rank());
    DistributedDataParallel ddp{group, module, Options{.buffers = Buffers::local}};
    EXPECT_EQ(module->shift[0].item<double>(), 1);
    module->shift.add_(group.rank());
    ddp.forward(input(group.rank())).sum().backward();
    EXPECT_EQ(module->shift[0].item<double>(), 1 + group.rank());
  });
}

TEST_F(ReplicaParity, AfterAFailedBackwardAnotherReplicaMayTrainTheModule) {
  const Tensors expected = means_of(2, [](Net& net, int rank) { net.forward(input(rank)).sum().backward(); });
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    {
      DistributedDataParallel ddp{group, net, several_buckets};
      const auto hook = net->first->bias.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted"); });
      EXPECT_ANY_THROW(ddp.forward(input(group.rank())).sum().backward());
      net->first->bias.remove_hook(hook);
    }
    DistributedDataParallel ddp{group, net, several_buckets};
    for (int i = 0; i < 2; ++i) {
      net->zero_grad();
      ddp.forward(input(group.rank())).sum().backward();
      expect_gradients(*net, expected);
    }
  });
}

TEST(ReplicaGroups, MayShrinkAndGrow) {
  const auto means = [](int ranks, bool all) {
    return means_of(ranks, [all](Net& net, int rank) { net.forward(input(rank), all).sum().backward(); });
  };
  const Tensors of_two = means(2, true), without_the_middle = means(2, false), of_three = means(3, true);
  on_ranks(3, Backend::memory, [&](const Group& group) {
    const int rank = group.rank();
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, several_buckets};
    const auto check = [&](const Tensors& expected, bool all = true) {
      net->zero_grad();
      ddp.forward(input(rank), all).sum().backward();
      expect_gradients(*net, expected);
    };
    const auto pair = group.split(rank < 2 ? std::optional(0) : std::nullopt, rank).get();
    if (pair) {
      ddp.set_group(*pair);
      check(of_two);
      check(without_the_middle, false);
    }
    ddp.set_group(group);
    for (int i = 0; i < 2; ++i) check(of_three);
  });
}

// --- Batch norm over all ranks ---

TEST_F(ReplicaParity, SyncBatchNormTrainsAsABatchNormOverTheWholeBatch) {
  const auto norm_groups = company.groups({.name = "norms"});
  const auto layers_of = [](const auto& norm) {
    torch::nn::Sequential layers(torch::nn::Linear(5, 4), norm, torch::nn::Tanh(), torch::nn::Linear(4, 3));
    layers->to(at::kDouble);
    fill(*layers);
    return layers;
  };
  for (const bool affine : {true, false})
    for (const auto& rows : {std::vector<std::int64_t>{2, 2}, {1, 1}, {1, 3}}) {
      const std::int64_t total = rows[0] + rows[1];
      const auto options = torch::nn::BatchNormOptions(4).affine(affine);
      auto alone = layers_of(torch::nn::BatchNorm1d(options));
      torch::optim::SGD own(alone->parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        const Batch batch = Batch::of_step(step, 1, total);
        own.zero_grad();
        ((alone->forward(batch.data) - batch.target).square().sum() / total).backward();
        own.step();
      }
      on_ranks(groups, [&](const Group& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        auto layers = layers_of(SyncBatchNorm(options, norm_groups[rank]));
        DistributedDataParallel ddp{group, layers};
        torch::optim::SGD optimizer(layers->parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          const Batch whole = Batch::of_step(step, 1, total);
          const std::int64_t first = rank == 0 ? 0 : rows[0];
          const at::Tensor data = whole.data.narrow(0, first, rows[rank]);
          const at::Tensor target = whole.target.narrow(0, first, rows[rank]);
          optimizer.zero_grad();
          // The average over two ranks is scaled to the sum over all rows, divided by their number.
          ((ddp.forward(data) - target).square().sum() * 2 / total).backward();
          optimizer.step();
        }
        expect_close(values_of(*layers), values_of(*alone), 1e-8);
      });
    }
}

TEST_F(ReplicaParity, SyncBatchNormKeepsTheMemoryFormat) {
  on_ranks(groups, [](const Group& group) {
    const auto check = [&](const std::vector<std::int64_t>& shape, at::MemoryFormat format) {
      SyncBatchNorm norm(torch::nn::BatchNormOptions(2), group);
      norm->to(at::kDouble);
      const at::Tensor x =
          at::arange(c10::multiply_integers(shape), at::kDouble).view(shape).sin() + group.rank();
      const at::Tensor expected = norm(x), output = norm(x.contiguous(format));
      EXPECT_TRUE(output.is_contiguous(format));
      expect_close({output}, {expected});
    };
    check({2, 2, 3, 3}, at::MemoryFormat::ChannelsLast);
    check({2, 2, 3, 3, 2}, at::MemoryFormat::ChannelsLast3d);
  });
}

TEST_F(ReplicaParity, SyncBatchNormOfHalfPrecisionHasGradientsOfItsType) {
  const auto norm_groups = company.groups({.name = "norms"});
  on_ranks(groups, [&](const Group& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(2), norm_groups[static_cast<std::size_t>(group.rank())]);
    norm->to(at::kHalf);
    DistributedDataParallel ddp{group, norm};
    const at::Tensor output = ddp.forward(at::arange(4, at::kHalf).view({2, 2}) * (group.rank() + 1));
    EXPECT_EQ(output.scalar_type(), at::kHalf);
    output.sum().backward();
    for (const at::Tensor& gradient : gradients_of(*norm)) EXPECT_EQ(gradient.scalar_type(), at::kHalf);
  });
}

// --- Join ---

TEST_F(ReplicaParity, AJoinThatThrowsEarlyLeavesEqualModels) {
  const auto norm_groups = company.groups({.name = "norms"});
  on_ranks(groups, [&](const Group& group) {
    torch::nn::Sequential layers(
        torch::nn::Linear(5, 4),
        SyncBatchNorm(torch::nn::BatchNormOptions(4), norm_groups[static_cast<std::size_t>(group.rank())]),
        torch::nn::Linear(4, 3));
    layers->to(at::kDouble);
    DistributedDataParallel ddp{group, layers};
    torch::optim::SGD optimizer(layers->parameters(), 0.1);
    std::vector<int> steps(static_cast<std::size_t>(2 + 2 * group.rank()));
    int made = 0;
    expect_error(
        [&] {
          for (const int each : ddp.join(steps, {.throw_early = true})) {
            train_step(optimizer, ddp, Batch::of_step(each + made, 2).part(group.rank(), 2));
            ++made;
          }
        },
        ErrorKind::failed_precondition, {"rank 0 has no batch left, but rank 1 has one"});
    EXPECT_EQ(made, 2);
    double sum = 0;
    for (const at::Tensor& value : values_of(*layers)) sum += value.sum().item<double>();
    const auto sums = group.all_gather_object(sum).get();
    EXPECT_EQ(sums[0], sums[1]);
  });
}

// Rank 0 has one batch, rank 1 three; in the second iteration no rank uses the middle layer.
TEST_F(ReplicaParity, AJoinWorksWithHooksAndUnusedParameters) {
  const auto loss_of = [](auto& forward, int step, int rank) {
    const Batch batch = Batch::of_step(step, 2).part(rank, 2);
    return torch::mse_loss(forward.forward(batch.data, step != 1), batch.target);
  };
  Net alone;
  torch::optim::SGD own(alone.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    own.zero_grad();
    for (int rank = step < 1 ? 0 : 1; rank < 2; ++rank) (loss_of(alone, step, rank) / 2).backward();
    own.step();
  }
  for (const bool compressed : {false, true})
    on_ranks(groups, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, several_buckets};
      if (compressed) {
        ddp.set_hook(std::make_shared<PowerSgdHook>(
            PowerSgdOptions{.rank = 1, .start_iteration = 1, .min_compression_rate = 1}));
      } else {
        ddp.set_hook(std::make_shared<InTwoSteps>());
      }
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      std::vector<int> steps = group.rank() == 0 ? std::vector{0} : std::vector{0, 1, 2};
      for (const int step : ddp.join(steps)) {
        optimizer.zero_grad();
        loss_of(ddp, step, group.rank()).backward();
        optimizer.step();
      }
      if (!compressed) expect_close(values_of(*net), values_of(alone));
      const auto sums = group.all_gather_object(net->last->weight.sum().item<double>()).get();
      EXPECT_EQ(sums[0], sums[1]);
    });
}

TEST_F(ReplicaParity, AnExceptionEndsAJoin) {
  struct Fails : Net {
    at::Tensor forward(const at::Tensor& x) {
      if (x.defined()) throw std::runtime_error("of the module");
      return x;
    }
  };
  on_ranks(groups, [](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Fails>()};
    std::vector<int> steps{1, 2};
    std::string text;
    try {
      for (const int step : ddp.join(steps)) ddp.forward(input(step)).sum().backward();
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, "of the module");
    int seen = 0;
    for (const int step : ddp.join(steps)) seen += step;  // another join may begin
    EXPECT_EQ(seen, 3);
  });
}

// --- Options ---

TEST(BucketCaps, AreOneAndThen25MebibytesByDefault) {
  EXPECT_EQ(Options().bucket_bytes, (std::vector<std::size_t>{1048576, 26214400}));
}

// --- Horovod ---

// Trains with two optimizers that step alternately. The parameters of the other one require no gradient.
template <class Optimizer>
void train_alternately(torch::nn::Linear& generator, torch::nn::Linear& judge, Optimizer& of_generator,
                       Optimizer& of_judge, const std::function<at::Tensor(const at::Tensor&)>& scale,
                       const at::Tensor& x) {
  for (int step = 0; step < 4; ++step) {
    const bool generates = step % 2 == 0;
    for (const at::Tensor& parameter : generator->parameters()) parameter.requires_grad_(generates);
    for (const at::Tensor& parameter : judge->parameters()) parameter.requires_grad_(!generates);
    of_generator.zero_grad();
    of_judge.zero_grad();
    scale(torch::tanh(judge(torch::tanh(generator(x)))).sum()).backward();
    EXPECT_EQ(generator->weight.grad().defined(), generates);
    EXPECT_EQ(judge->weight.grad().defined(), !generates);
    (generates ? of_generator : of_judge).step();
  }
}

TEST(AllReduceParity, ParametersMayNeedNoGradientForAStep) {
  const auto make = [] {
    std::pair modules{torch::nn::Linear(5, 4), torch::nn::Linear(4, 1)};
    for (auto* module : {&modules.first, &modules.second}) {
      (*module)->to(at::kDouble);
      fill(**module);
    }
    return modules;
  };
  auto [generator, judge] = make();
  torch::optim::SGD of_generator(generator->parameters(), 0.1), of_judge(judge->parameters(), 0.1);
  train_alternately(
      generator, judge, of_generator, of_judge, [](const at::Tensor& loss) { return loss / 2; },
      at::cat({input(0), input(1)}));
  const Tensors expected{generator->weight, generator->bias, judge->weight, judge->bias};
  Company company(2, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    auto reduction = NegotiatedReduction::make(company.agent(group.rank()), group);
    auto modules = make();
    auto& [own, other] = modules;
    torch::optim::SGD sgd(own->parameters(), 0.1), other_sgd(other->parameters(), 0.1);
    AllReduceOptimizer optimizer(reduction, sgd, *own, {.prefix = "generator."});
    AllReduceOptimizer other_optimizer(reduction, other_sgd, *other, {.prefix = "judge."});
    train_alternately(
        own, other, optimizer, other_optimizer, [](const at::Tensor& loss) { return loss; },
        input(group.rank()));
    expect_close({own->weight, own->bias, other->weight, other->bias}, expected);
  });
}

// The even and the odd ranks use the same names at the same time.
TEST(AllReduceParity, SubgroupsReduceIndependently) {
  Company company(4, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    const Group half = group.split(group.rank() % 2).get().value();
    auto reduction = NegotiatedReduction::make(company.agent(group.rank()), half);
    const at::Tensor tensor = at::full({3}, group.rank(), at::kDouble);
    reduction->all_reduce("tensor", tensor).get();
    expect_close({tensor}, {at::full({3}, 1 + group.rank() % 2, at::kDouble)});
    Net net, alone;
    torch::optim::SGD sgd(net.parameters(), 0.1), own(alone.parameters(), 0.1);
    AllReduceOptimizer optimizer(reduction, sgd, net);
    net.forward(input(group.rank())).sum().backward();
    optimizer.step();
    for (const int rank : {group.rank() % 2, group.rank() % 2 + 2})
      (alone.forward(input(rank)).sum() / 2).backward();
    own.step();
    expect_close(values_of(net), values_of(alone));
    // Tensors of one name, and a sparse tensor.
    const Tensors tensors{at::full({3}, group.rank(), at::kDouble),
                          at::full({2, 2}, -group.rank(), at::kDouble)};
    auto grouped = reduction->all_reduce("tensors", tensors);
    const at::Tensor row = at::full({1, 1}, group.rank(), at::kLong);
    const at::Tensor sparse = at::sparse_coo_tensor(row, at::full({1, 2}, 3.0, at::kDouble), {4, 2});
    reduction->all_reduce("sparse", sparse, {.op = collectives::ReduceOp::sum}).get();
    grouped.get();
    const int odd = group.rank() % 2;
    expect_close(tensors, {at::full({3}, 1 + odd, at::kDouble), at::full({2, 2}, -1 - odd, at::kDouble)});
    at::Tensor rows = at::zeros({4, 2}, at::kDouble);
    rows[odd] += 3, rows[odd + 2] += 3;
    expect_close({sparse.to_dense()}, {rows});
  });
}

TEST(AllReduceParity, StateAndOptionsOfAnOptimizerAreBroadcastFromTheRoot) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    Net net;
    torch::optim::Adam adam(
        net.parameters(),
        torch::optim::AdamOptions(0.1 * (group.rank() + 1)).weight_decay(0.01 * (group.rank() + 1)));
    const auto step = [&](int number) {
      adam.zero_grad();
      net.forward(input(number)).square().sum().backward();
      adam.step();
    };
    for (int i = 0; i <= group.rank(); ++i) step(i + group.rank());
    training::broadcast_parameters(group, net, 0);
    training::broadcast_optimizer_state(group, adam, 0);
    const auto& options = static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options());
    EXPECT_EQ(options.lr(), 0.1);
    EXPECT_EQ(options.weight_decay(), 0.01);
    step(5);
    Tensors values = values_of(net), first = values_of(net);
    training::broadcast_tensors(group, first, 0).get();
    expect_close(values, first, 0);
  });
}

TEST_F(ReplicaParity, AJoinLeavesLocalBuffersUnchanged) {
  on_ranks(groups, [](const Group& group) {
    torch::nn::BatchNorm1d norm(5);
    norm->to(at::kDouble);
    DistributedDataParallel ddp{group, norm, {.buffers = Buffers::local}};
    std::vector<int> steps(1 + static_cast<std::size_t>(group.rank()));
    for ([[maybe_unused]] int& step : ddp.join(steps))
      ddp.forward(Batch::of_step(0, 2).part(group.rank(), 2).data).square().sum().backward();
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1 + group.rank());
  });
}

TEST_F(ReplicaParity, OneRankMayEvaluateASyncBatchNormWithoutRunningStatistics) {
  on_ranks(groups, [](const Group& group) {
    const auto options = torch::nn::BatchNormOptions(5).track_running_stats(false);
    SyncBatchNorm norm(options, group);
    torch::nn::BatchNorm1d alone(options);
    norm->to(at::kDouble), alone->to(at::kDouble);
    norm->eval(), alone->eval();
    const at::Tensor x = Batch::of_step(0, 1).data;
    if (group.rank() == 0) expect_close({norm(x)}, {alone(x)});
  });
}

}  // namespace
}  // namespace weft::data_parallel::parity_test
