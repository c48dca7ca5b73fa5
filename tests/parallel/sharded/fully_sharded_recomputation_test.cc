// FullyShardedDataParallel with blocks that are recomputed in backward (activation_checkpoint), on all ranks
// or on some.
#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/parallel/sharded/internal/shard_layout.h>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_recomputation_test {
namespace {

using namespace testing;
using dist_autograd::activation_checkpoint;

constexpr int ranks = 2;

// The parts of the chain that run again in backward.
enum class Recomputed { none, each_block, two_blocks, within_blocks };

struct Chain : torch::nn::Module {
  // A block whose inner module runs again in backward.
  struct Outer : torch::nn::Module {
    explicit Outer(std::uint64_t seed) {
      inner = register_module("inner", std::make_shared<Layer>(5));
      const auto values = layer_of(seed)->parameters();
      const auto parameters = inner->parameters();
      for (std::size_t i = 0; i < values.size(); ++i) parameters[i].set_data(values[i].data());
    }
    at::Tensor forward(const at::Tensor& x, bool recomputed) {
      return recomputed ? activation_checkpoint(*inner, x) : inner->forward(x);
    }
    std::shared_ptr<Layer> inner;
  };
  explicit Chain(int length = 4, bool shared = false) {
    for (int i = 0; i < length; ++i)
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<Block<Outer>>(10 * i + 1)));
    if (!shared) return;
    Layer& second = *blocks[1]->inner;
    second.linear = second.replace_module("linear", blocks[0]->inner->linear);
  }
  at::Tensor run(std::size_t begin, std::size_t end, at::Tensor x, Recomputed recomputed) {
    for (std::size_t i = begin; i < end; ++i)
      x = blocks[i]->forward(x, recomputed == Recomputed::within_blocks);
    return x;
  }
  at::Tensor forward(at::Tensor x, Recomputed recomputed) {
    const std::size_t each = recomputed == Recomputed::two_blocks ? 2 : 1;
    for (std::size_t i = 0; i < blocks.size(); i += each) {
      if (recomputed == Recomputed::none || recomputed == Recomputed::within_blocks) {
        x = run(i, i + each, x, recomputed);
        continue;
      }
      std::vector<at::Tensor> parameters;
      for (std::size_t j = i; j < i + each; ++j)
        for (const at::Tensor& parameter : blocks[j]->parameters()) parameters.push_back(parameter);
      x = activation_checkpoint(
          [this, i, each](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{run(i, i + each, in[0], Recomputed::none)};
          },
          {x}, parameters)[0];
    }
    return x;
  }
  std::vector<std::shared_ptr<Block<Outer>>> blocks;
};

class Recomputation : public ::testing::TestWithParam<std::tuple<Recomputed, bool>> {
 protected:
  const Recomputed recomputed = std::get<0>(GetParam());
  const Options options{.reshard_after_forward = std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Forms, Recomputation,
                         ::testing::Combine(::testing::Values(Recomputed::none, Recomputed::each_block,
                                                              Recomputed::two_blocks,
                                                              Recomputed::within_blocks),
                                            ::testing::Bool()));

TEST_P(Recomputation, EqualsOneProcess) {
  for (const bool shared : {false, true})
    expect_equal_gradients([&] { return std::make_shared<Chain>(4, shared); },
                           [&](auto& module, const Batch& part) {
                             return module.forward(part.data, recomputed).square().mean();
                           },
                           options);
}

TEST_P(Recomputation, MayRunSeveralForwardsBeforeBackward) {
  expect_equal_gradients([&] { return std::make_shared<Chain>(); },
                         [&](auto& module, const Batch& part) {
                           const at::Tensor first = module.forward(part.data, recomputed);
                           return (first * module.forward(2 * part.data, recomputed)).square().mean();
                         },
                         options);
}

// Rank 1 computes no gradient of the chain in even steps.
TEST_P(Recomputation, MayBeOnSomeRanksOnly) {
  struct Gated : torch::nn::Module {
    Gated() : chain(register_module("chain", std::make_shared<Chain>())) {
      scale = register_parameter("scale", at::ones({5}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x, Recomputed recomputed, bool detached) {
      const at::Tensor y = chain->forward(x, recomputed);
      return (detached ? y.detach() : y) * scale;
    }
    std::shared_ptr<Chain> chain;
    at::Tensor scale;
  };
  expect_equal_steps(
      3, [] { return std::make_shared<Gated>(); },
      [&](auto& module, int step, int rank, const Batch& part) {
        return module.forward(part.data, recomputed, step % 2 == 0 && rank == 1).square().mean();
      },
      options);
}

TEST(Recomputations, NeedTheMemoryOfThePartsAndTwoBlocks) {
  for (const Recomputed recomputed : {Recomputed::none, Recomputed::each_block, Recomputed::within_blocks}) {
    on_ranks(ranks, [&](const Group& group) {
      constexpr int length = 12;
      FullyShardedDataParallel fsdp{group, std::make_shared<Chain>(length)};
      for (int i = 0; i < 2; ++i)
        fsdp.forward(Batch::of_step(0, ranks).part(group.rank(), ranks).data, recomputed).sum().backward();
      const std::int64_t block = ShardLayout(std::vector<std::int64_t>{5, 5, 25, 5}, ranks).elements();
      EXPECT_LE(static_cast<std::int64_t>(fsdp.bytes() / sizeof(double)),
                2 * length * (block + 8) / ranks + 4 * block);
    });
  }
}

TEST(Recomputations, OfReplicasEqualOneProcess) {
  Chain whole;
  const Batch batch = Batch::of_step(0, 4);
  (2 * whole.forward(batch.data, Recomputed::none).square().mean()).backward();
  on_ranks(4, [&](const Group& all) {
    const auto mesh = two_replicas(all);
    FullyShardedDataParallel fsdp{
        mesh.group("shard"), std::make_shared<Chain>(), {.replicas = mesh.group("replicate")}};
    const auto backward = [&] {
      fsdp.forward(batch.part(all.rank(), 4).data, Recomputed::each_block).square().mean().backward();
    };
    {
      const auto guard = fsdp.no_sync();
      backward();
    }
    backward();
    expect_gradients(fsdp, whole);
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_recomputation_test
