#include <weft/parallel/training/autocast.h>

#include <weft/parallel/training/unscale.h>

#include <ATen/autocast_mode.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::training::autocast_test {
namespace {

using namespace data_parallel;
using namespace data_parallel::testing;

at::ScalarType type_of_product() { return at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

TEST(Autocast, GuardsMayBeNested) {
  EXPECT_EQ(type_of_product(), at::kFloat);
  {
    const Autocast outer(at::kCPU);
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    {
      const Autocast half(at::kCPU, at::kHalf);
      EXPECT_EQ(type_of_product(), at::kHalf);
      const Autocast off(at::kCPU, std::nullopt, false);
      EXPECT_EQ(type_of_product(), at::kFloat);
    }
    EXPECT_EQ(type_of_product(), at::kBFloat16);
    EXPECT_ANY_THROW({
      const Autocast half(at::kCPU, at::kHalf);
      throw std::runtime_error("within");
    });
    EXPECT_EQ(type_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), at::kFloat);
  EXPECT_EQ(at::autocast::increment_nesting(), 1);  // all guards have ended
  at::autocast::decrement_nesting();
}

TEST(Autocast, TheNextGuardSeesAStepBetweenGuards) {
  torch::nn::Linear layer(torch::nn::LinearOptions(2, 2).bias(false));
  const auto value = [&] {
    const Autocast outer(at::kCPU), inner(at::kCPU);
    return layer(at::ones({1, 2})).sum().item<float>();
  };
  for (const double weight : {1, 2}) {
    {
      const torch::NoGradGuard no_grad;
      layer->weight.fill_(weight);
    }
    EXPECT_EQ(value(), 4 * weight);
  }
}

// One process computes the parts of both ranks, with a scaled loss, as the reference.
TEST(Autocast, ADistributedTrainingEqualsTheAlgorithmInOneProcess) {
  constexpr double scale = 1024;
  const auto loss_of = [](auto& forward, const Batch& batch) {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const at::Tensor output = forward.forward(batch.data.to(at::kFloat));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    return scale * torch::mse_loss(output, batch.target.to(at::kFloat));
  };
  Net alone(1, at::kFloat);
  torch::optim::SGD own(alone.parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    own.zero_grad();
    for (int rank = 0; rank < 2; ++rank) loss_of(alone, Batch::of_step(step, 2).part(rank, 2)).backward();
    for (const at::Tensor& parameter : alone.parameters()) parameter.mutable_grad().div_(2 * scale);
    own.step();
  }
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto net = std::make_shared<Net>(1, at::kFloat);
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      loss_of(ddp, Batch::of_step(step, 2).part(group.rank(), 2)).backward();
      for (const at::Tensor& parameter : net->parameters())
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(unscale_gradients(group, optimizer, scale));
      optimizer.step();
    }
    expect_close(values_of(*net), values_of(alone), 1e-6);
  });
}

}  // namespace
}  // namespace weft::training::autocast_test
