#include <weft/parallel/data_parallel/hooks/cast_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::cast_hook_test {
namespace {

using namespace testing;

// The reference in one process: rounds each rank's gradients, averages them in float32 and rounds again.
TEST(CastHook, EqualsTheSameRoundingInOneProcess) {
  constexpr int ranks = 3;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const Tensors expected = rounded_averages(ranks, dtype);
    on_ranks(ranks, Backend::memory, [&](const Group& group) {
      auto net = std::make_shared<Net>(1, at::kFloat);
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
      ddp.set_hook(std::make_shared<CastHook>(dtype));
      for (int i = 0; i < 3; ++i) {
        net->zero_grad();
        ddp.forward(at::full({2, 5}, group.rank() + 1.0)).sum().backward();
        expect_close(gradients_of(*net), expected, 0);
      }
    });
  }
}

TEST(CastHook, RefusesOtherTypes) {
  for (const at::ScalarType dtype : {at::kDouble, at::kComplexFloat, at::kComplexHalf, at::kInt})
    EXPECT_EQ(test::kind_of([&] { CastHook{dtype}; }), ErrorKind::invalid_argument) << dtype;
}

TEST(CastHook, GradientsOfItsTypeKeepTheirBits) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
    DistributedDataParallel ddp{group, layer};
    ddp.set_hook(std::make_shared<CastHook>(at::kFloat));
    ddp.forward(at::full({1, 1}, group.rank() == 0 ? 1.0F : 1e-7F)).sum().backward();
    EXPECT_EQ(layer->weight.grad().item<float>(), (1.0F + 1e-7F) / 2);
  });
}

// Their real and imaginary parts are rounded.
TEST(CastHook, ComplexGradientsArePairsOfNarrowNumbers) {
  struct Phases : torch::nn::Module {
    Phases() { phases = register_parameter("phases", at::ones({3}, at::kComplexFloat)); }
    at::Tensor forward(const at::Tensor& x) { return at::real(phases * x).sum(); }
    at::Tensor phases;
  };
  const auto input = [](int rank) { return at::complex(at::rand({3}), at::rand({3})) * (rank + 1); };
  torch::manual_seed(3);
  const std::vector<at::Tensor> inputs{input(0), input(1)};
  at::Tensor expected = at::zeros({3, 2});
  for (const at::Tensor& x : inputs)
    expected += at::view_as_real(x.conj().resolve_conj()).to(at::kBFloat16).to(at::kFloat);
  expected = (expected / 2).to(at::kBFloat16).to(at::kFloat);
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto module = std::make_shared<Phases>();
    DistributedDataParallel ddp{group, module};
    ddp.set_hook(std::make_shared<CastHook>(at::kBFloat16));
    ddp.forward(inputs[static_cast<std::size_t>(group.rank())]).backward();
    EXPECT_EQ(module->phases.grad().scalar_type(), at::kComplexFloat);
    EXPECT_TRUE(at::equal(at::view_as_real(module->phases.grad()), expected));
  });
}

TEST(CastHook, HasTheNameOfItsInnerHook) {
  EXPECT_EQ(CastHook(at::kHalf).name(), "CastHook(Half)");
  EXPECT_EQ(CastHook(at::kBFloat16, std::make_shared<CastHook>(at::kHalf)).name(),
            "CastHook(BFloat16, CastHook(Half))");
}

}  // namespace
}  // namespace weft::data_parallel::cast_hook_test
