// A transformer block split over ranks against the same block of LibTorch's modules, with and without
// sequence parallel.
#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/linear.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::transformer_block_test {
namespace {

using namespace testing;

constexpr std::int64_t width = 24, heads = 12, batch = 2, sequence = 12;

// features: 3 * heads * the width of a head, for the heads of this rank.
at::Tensor attention_of(const at::Tensor& projected, std::int64_t heads_here) {
  const auto parts =
      projected.unflatten(-1, {3, heads_here, width / heads}).permute({2, 0, 3, 1, 4}).unbind();
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true)
      .transpose(1, 2)
      .flatten(2);
}

template <class Norm, class Column, class Row>
struct Block : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = x + projection(attention_of(qkv(first_norm(x)), heads_here));
    return x + down(torch::gelu(up(second_norm(x))));
  }
  void add(Norm first, Norm second, Column fused, Row output, Column wide, Row narrow) {
    first_norm = register_module("first_norm", first);
    second_norm = register_module("second_norm", second);
    qkv = register_module("qkv", fused);
    projection = register_module("projection", output);
    up = register_module("up", wide);
    down = register_module("down", narrow);
    to(at::kDouble);
  }
  std::int64_t heads_here = heads;
  Norm first_norm{nullptr}, second_norm{nullptr};
  Column qkv{nullptr}, up{nullptr};
  Row projection{nullptr}, down{nullptr};
};

struct Whole : Block<torch::nn::LayerNorm, torch::nn::Linear, torch::nn::Linear> {
  Whole() {
    torch::manual_seed(3);
    const torch::nn::LayerNormOptions norm({width});
    torch::nn::Linear fused(width, 3 * width), output(width, width), wide(width, 4 * width),
        narrow(4 * width, width);
    add(torch::nn::LayerNorm(norm), torch::nn::LayerNorm(norm), fused, output, wide, narrow);
  }
};

template <class Norm>
struct Split : Block<Norm, ColumnParallelLinear, RowParallelLinear> {
  Split(const Group& group, Norm first, Norm second, std::optional<std::int64_t> dim) {
    this->heads_here = divide(group, heads, "heads");
    const at::Generator drawn = generator(3);
    const ColumnParallelOptions column{.sequence_dim = dim, .generator = drawn};
    const RowParallelOptions row{.sequence_dim = dim, .generator = drawn};
    ColumnParallelOptions three = column;
    three.blocks = 3;
    ColumnParallelLinear fused(group, width, 3 * width, three);
    RowParallelLinear output(group, width, width, row);
    ColumnParallelLinear wide(group, width, 4 * width, column);
    RowParallelLinear narrow(group, 4 * width, width, row);
    this->add(first, second, fused, output, wide, narrow);
  }
};

class Blocks : public OnRanks {
 protected:
  template <class Make>
  void expect_equal(std::optional<std::int64_t> dim, Make make) {
    Whole whole;
    const at::Tensor targets = numbers({batch, sequence, width}, 100);
    expect_equal_training(
        groups, whole, make, {batch, sequence, width}, dim,
        [](std::vector<at::Tensor> parameters) {
          return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(1e-3).momentum(0.9));
        },
        [&](const at::Tensor& output, const auto& mine) { return (output - mine(targets)).square().sum(); });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Blocks, up_to_four());

TEST_P(Blocks, EqualTheWholeBlock) {
  expect_equal({}, [](const Group& group) {
    const torch::nn::LayerNormOptions norm({width});
    return std::make_shared<Split<torch::nn::LayerNorm>>(group, torch::nn::LayerNorm(norm),
                                                         torch::nn::LayerNorm(norm), std::nullopt);
  });
}

TEST_P(Blocks, WithSequenceParallelEqualTheWholeBlock) {
  expect_equal(1, [](const Group& group) {
    SequenceParallelLayerNorm first(group, width), second(group, width);
    return std::make_shared<Split<SequenceParallelLayerNorm>>(group, first, second, 1);
  });
}

}  // namespace
}  // namespace weft::tensor_parallel::transformer_block_test
