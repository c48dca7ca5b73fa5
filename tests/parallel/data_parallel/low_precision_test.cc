// Mixed precision of a DistributedDataParallel: the types that forward sees, and the same algorithm by hand.
#include <weft/parallel/data_parallel/low_precision.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::low_precision_test {
namespace {

using namespace testing;
using Tensors = std::vector<at::Tensor>;

const Options in_bfloat16{.bucket_bytes = {200}, .mixed_precision = {.parameters = at::kBFloat16}};

at::Tensor input(int rank) { return at::arange(10).view({2, 5}) * (rank + 1) / 10.0; }

// Returns the gradients of a narrow copy of the master, widened. They are undefined for parameters that
// forward does not use.
Tensors narrow_gradients(const Net& master, at::ScalarType dtype,
                         const std::function<at::Tensor(Net&)>& loss_of) {
  Net low(1, dtype);
  const Tensors from = master.parameters(), to = low.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].detach().copy_(from[i].detach());
  loss_of(low).backward();
  Tensors gradients;
  for (const at::Tensor& parameter : to)
    gradients.push_back(parameter.grad().defined() ? parameter.grad().to(at::kFloat) : at::Tensor());
  return gradients;
}

void add(Tensors& sums, const Tensors& gradients) {
  sums.resize(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) sums[i] = sums[i].defined() ? sums[i] + gradients[i] : gradients[i];
}

void expect_equal(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].scalar_type(), b[i].scalar_type()) << "tensor " << i;
    EXPECT_TRUE(at::equal(a[i], b[i])) << "tensor " << i << "\n" << a[i] << "\n" << b[i];
  }
}

void expect_wide_gradients(const Net& net) {
  for (const auto& parameter : net.named_parameters()) {
    const at::Tensor& gradient = parameter.value().grad();
    EXPECT_TRUE(!gradient.defined() || gradient.scalar_type() == at::kFloat) << parameter.key();
  }
}

struct Types {
  at::ScalarType parameters;
  std::optional<at::ScalarType> reduction;
};

class MixedPrecisionTraining : public ::testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(Types, MixedPrecisionTraining,
                         ::testing::Values(Types{at::kBFloat16, {}}, Types{at::kBFloat16, at::kBFloat16},
                                           Types{at::kHalf, at::kHalf}, Types{at::kBFloat16, at::kHalf}));

// Each step accumulates two micro-batches; in the second one rank 0 does not use the middle layer, and in odd
// steps rank 1 does not either.
TEST_P(MixedPrecisionTraining, EqualsTheAlgorithmInOneProcess) {
  constexpr int steps = 4;
  const Types types = GetParam();
  const auto loss_of = [&](auto& forward, int step, int rank, int part) {
    const bool all = part == 0 ? step % 2 == 0 : rank == 1 && step % 2 == 0;
    const at::Tensor x = input(rank) + step + 0.5 * part;
    return forward.forward(x, all).to(at::kFloat).square().mean();
  };
  for (const bool set_to_none : {true, false}) {
    Net alone(1, at::kFloat);
    torch::optim::SGD own(alone.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < steps; ++step) {
      own.zero_grad(set_to_none);
      Tensors sums;
      for (int rank = 0; rank < 2; ++rank) {
        Tensors of_rank;
        for (const int part : {0, 1})
          add(of_rank, narrow_gradients(alone, types.parameters, [&](Net& low) {
                const auto to_low = [&](const at::Tensor& x, bool all) {
                  return low.forward(x.to(types.parameters), all);
                };
                struct Forward {
                  const std::function<at::Tensor(const at::Tensor&, bool)> forward;
                } forward{to_low};
                return loss_of(forward, step, rank, part);
              }));
        if (types.reduction)
          for (at::Tensor& gradient : of_rank)
            if (gradient.defined()) gradient = gradient.to(*types.reduction).to(at::kFloat);
        add(sums, of_rank);
      }
      const Tensors parameters = alone.parameters();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        if (!sums[i].defined()) continue;
        at::Tensor mean = sums[i] / 2;
        if (types.reduction) mean = mean.to(*types.reduction).to(at::kFloat);
        parameters[i].mutable_grad() = mean;
      }
      own.step();
    }
    Company company(2, Backend::memory);
    on_ranks(company.groups(), [&](const Group& group) {
      auto net = std::make_shared<Net>(1, at::kFloat);
      DistributedDataParallel ddp{
          group,
          net,
          {.bucket_bytes = {200},
           .mixed_precision = {.parameters = types.parameters, .reduction = types.reduction}}};
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad(set_to_none);
        {
          const auto guard = ddp.no_sync();
          loss_of(ddp, step, group.rank(), 0).backward();
          expect_wide_gradients(*net);
        }
        loss_of(ddp, step, group.rank(), 1).backward();
        expect_wide_gradients(*net);
        optimizer.step();
      }
      expect_equal(values_of(*net), values_of(alone));
    });
  }
}

class MixedPrecisionOfTwo : public OfRanks<2> {};

struct Sample {
  at::Tensor x;
  std::optional<at::Tensor> mask;
  std::vector<at::Tensor> rows;
};
WEFT_CODEC(Sample, x, mask, rows)

// Checks the types of everything that forward uses.
struct Seeing : torch::nn::Module {
  Seeing() {
    layer = register_module("layer", torch::nn::Linear(5, 3));
    frozen = register_module("frozen", torch::nn::Linear(5, 3));
    for (const at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
    scale = register_parameter("scale", at::ones({3}));
    own = register_buffer("own", at::ones({3}));
    shift = register_buffer("shift", at::ones({3}));
    count = register_buffer("count", at::zeros({1}, at::kLong));
  }
  at::Tensor forward(at::Tensor& x, const Sample& sample, std::vector<at::Tensor> list, double factor) {
    for (const at::Tensor& each : {layer->weight, layer->bias, frozen->weight, x, sample.x, list.at(0)})
      EXPECT_EQ(each.scalar_type(), at::kBFloat16);
    EXPECT_EQ(sample.rows.at(0).scalar_type(), at::kLong);
    EXPECT_FALSE(list.at(1).defined());
    for (const at::Tensor& each : {scale, own}) EXPECT_EQ(each.scalar_type(), at::kFloat);
    EXPECT_EQ(shift.scalar_type(), at::kHalf);
    EXPECT_EQ(count.scalar_type(), at::kLong);
    shift.add_(1);
    return (layer(x) + frozen(sample.x)).to(at::kFloat) * scale * factor;
  }
  torch::nn::Linear layer{nullptr}, frozen{nullptr};
  at::Tensor scale, own, shift, count;
};

TEST_F(MixedPrecisionOfTwo, ForwardSeesTheRequestedTypes) {
  on_ranks(groups, [](const Group& group) {
    auto module = std::make_shared<Seeing>();
    DistributedDataParallel ddp{group,
                                module,
                                {.mixed_precision = {.parameters = at::kBFloat16, .buffers = at::kHalf},
                                 .ignored = {"scale", "own"}}};
    at::Tensor x = input(group.rank());
    const Sample sample{x, std::nullopt, {at::ones({1}, at::kLong)}};
    const std::vector<at::Tensor> list{x, {}};
    for (int i = 0; i < 2; ++i) {
      const at::Tensor output = ddp.forward(x, sample, list, 2.0);
      for (const at::Tensor& parameter : module->parameters()) {
        EXPECT_EQ(parameter.scalar_type(), at::kFloat);
        EXPECT_TRUE(parameter.is_leaf());
      }
      for (const at::Tensor& each : {x, sample.x, list[0]}) EXPECT_EQ(each.scalar_type(), at::kFloat);
      output.sum().backward();
      EXPECT_EQ(module->layer->weight.scalar_type(), at::kFloat);
      EXPECT_EQ(module->layer->weight.grad().scalar_type(), at::kFloat);
      EXPECT_FALSE(module->frozen->weight.grad().defined());
      EXPECT_EQ(module->shift[0].item<float>(), 2 + i);
      EXPECT_EQ(module->shift.scalar_type(), at::kHalf);
    }
  });
}

// After forward, the loss uses a parameter in its own type, in addition to the copy that forward uses.
TEST_F(MixedPrecisionOfTwo, TheLossMayUseAParameter) {
  const auto penalty = [](const Net& net, int rank) { return net.first->weight.square().sum() * (rank + 1); };
  Net alone(1, at::kFloat);
  Tensors expected;
  for (int rank = 0; rank < 2; ++rank)
    add(expected, narrow_gradients(alone, at::kBFloat16, [&](Net& low) {
          return low.forward(input(rank).to(at::kBFloat16)).sum();
        }));
  for (at::Tensor& gradient : expected) gradient /= 2;
  expected[0] += 3 * alone.first->weight.detach();
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>(1, at::kFloat);
    DistributedDataParallel ddp{group, net, in_bfloat16};
    for (int i = 0; i < 3; ++i) {
      net->zero_grad(i % 2 == 0);
      const at::Tensor output = ddp.forward(input(group.rank()));
      (output.sum() + penalty(*net, group.rank())).backward();
      expect_close(gradients_of(*net), expected, 1e-6);
    }
  });
}

TEST_F(MixedPrecisionOfTwo, AGraphMayHaveSeveralForwardsAndBackwards) {
  Net alone(1, at::kFloat);
  Tensors once;
  for (int rank = 0; rank < 2; ++rank)
    for (const int part : {0, 2})
      add(once, narrow_gradients(alone, at::kBFloat16, [&](Net& low) {
            return low.forward(input(rank + part).to(at::kBFloat16)).sum();
          }));
  for (at::Tensor& gradient : once) gradient /= 2;
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>(1, at::kFloat);
    DistributedDataParallel ddp{group, net, in_bfloat16};
    const at::Tensor loss =
        ddp.forward(input(group.rank())).sum() + ddp.forward(input(group.rank() + 2)).sum();
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(ddp.forward(input(0)).scalar_type(), at::kBFloat16);
    }
    for (const double times : {1, 2}) {
      loss.backward({}, true);
      Tensors gradients;
      for (const at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad() / times);
      expect_close(gradients, once, 1e-2);  // the two parts add up in bfloat16
    }
  });
}

TEST_F(MixedPrecisionOfTwo, ARecomputedCheckpointUsesTheSameType) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<Tensors> gradients;
    for (const bool is_checkpointed : {false, true}) {
      auto net = std::make_shared<Net>(1, at::kFloat);
      if (is_checkpointed) {
        DistributedDataParallel ddp{group, std::make_shared<Checkpointed>(net), in_bfloat16};
        ddp.forward(input(group.rank())).sum().backward();
      } else {
        DistributedDataParallel ddp{group, net, in_bfloat16};
        ddp.forward(input(group.rank())).sum().backward();
      }
      gradients.push_back(gradients_of(*net));
    }
    expect_equal(gradients[0], gradients[1]);
  });
}

TEST_F(MixedPrecisionOfTwo, SparseGradientsHaveTheTypeOfTheParameter) {
  on_ranks(groups, [](const Group& group) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(6, 2).sparse(true));
    DistributedDataParallel ddp{group, table, Options{.mixed_precision = {.parameters = at::kBFloat16}}};
    for (int i = 0; i < 2; ++i) {
      table->zero_grad();
      ddp.forward(at::full({1}, group.rank(), at::kLong)).sum().backward();
      const at::Tensor gradient = table->weight.grad();
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      expect_equal({gradient.to_dense().slice(0, 0, 2)}, {at::full({2, 2}, 0.5)});
    }
  });
}

TEST_F(MixedPrecisionOfTwo, AFailureRestoresTheTypeOfTheParameters) {
  struct Fails : Net {
    Fails() : Net(1, at::kFloat) {}
    at::Tensor forward(const at::Tensor& x, bool fails) {
      if (fails) throw std::runtime_error("of the module");
      return Net::forward(x);
    }
  };
  on_ranks(groups, [](const Group& group) {
    auto net = std::make_shared<Fails>();
    DistributedDataParallel ddp{group, net, Options{.mixed_precision = {.parameters = at::kBFloat16}}};
    EXPECT_ANY_THROW(ddp.forward(input(0), true));
    EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
    net->first->bias.register_hook(
        [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted"); });
    EXPECT_ANY_THROW(ddp.forward(input(0), false).sum().backward());
    EXPECT_EQ(net->first->weight.scalar_type(), at::kFloat);
  });
}

}  // namespace
}  // namespace weft::data_parallel::low_precision_test
