// Tensors as the items of streams, both ways; a generator runs under its call's thread-local state.
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::tensor_stream_test {
namespace {

using test::got;

rpc::Stream<at::Tensor> batches(std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (at::GradMode::is_enabled()) throw std::runtime_error("gradients are recorded without a pass");
    at::Tensor batch = at::full({1000}, i);  // g++ 12 takes no braces in what is yielded
    co_yield std::move(batch);
  }
}

rpc::Task<at::Tensor> sum(rpc::Stream<at::Tensor> items) {
  at::Tensor total = at::zeros({1000});
  while (auto item = co_await items.next()) total = total + *item;
  co_return total;
}

rpc::Stream<at::Tensor> doubled(rpc::Stream<at::Tensor> items) {
  while (auto item = co_await items.next()) co_yield *item * 2;
}

using Batches = rpc::Function<"batches", &batches>;
using Sum = rpc::Function<"sum", &sum>;
using Doubled = rpc::Function<"doubled", &doubled>;

rpc::Stream<at::Tensor> ones(std::int64_t n) {
  const at::Tensor one = at::ones({1000});
  for (std::int64_t i = 0; i < n; ++i) co_yield one;
}

class TensorStreamTest : public testing::TestWithParam<bool> {
 protected:
  TensorStreamTest() : cluster_({.layers = layers(), .tcp = GetParam()}, {"here", "there"}) {
    cluster_["there"].serve<Batches>();
    cluster_["there"].serve<Sum>();
    cluster_["there"].serve<Doubled>();
    peer_.emplace(cluster_.peer("here", "there"));
  }
  test::Cluster cluster_;
  std::optional<rpc::Peer> peer_;
};

INSTANTIATE_TEST_SUITE_P(Over, TensorStreamTest, testing::Values(false, true),
                         [](const auto& way) { return way.param ? "Tcp" : "Memory"; });

TEST_P(TensorStreamTest, AsAResult) {
  auto stream = got(peer_->call<Batches>(40));
  for (std::int64_t i = 0; i < 40; ++i) {
    const auto item = got(stream.next());
    ASSERT_TRUE(item);
    EXPECT_TRUE(at::equal(*item, at::full({1000}, i)));
  }
  EXPECT_FALSE(got(stream.next()));
}

TEST_P(TensorStreamTest, AsAParameterAndBothWays) {
  EXPECT_TRUE(at::equal(got(peer_->call<Sum>(ones(40))), at::full({1000}, 40.)));
  auto stream = got(peer_->call<Doubled>(got(peer_->call<Batches>(40))));
  EXPECT_TRUE(at::equal(got(peer_->call<Sum>(std::move(stream))), at::full({1000}, 39. * 40.)));
}

}  // namespace
}  // namespace weft::tensor::tensor_stream_test
