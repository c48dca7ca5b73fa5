#include <weft/rpc/tensor/layers.h>

#include <weft/rpc/tensor/tensor_codec.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::layers_test {
namespace {

at::Tensor multiply(at::Tensor a, at::Tensor b) { return a.mm(b); }
using Multiply = rpc::Function<"multiply", &multiply>;

TEST(TensorLayers, ErrorsOfLibTorchArriveWithoutTheirBacktrace) {
  test::Cluster cluster({.layers = layers()}, {"here", "there"});
  cluster["there"].serve<Multiply>();
  const auto call = [&] {
    test::got(cluster.peer("here", "there").call<Multiply>(at::ones({2, 3}), at::ones({2, 3})));
  };
  const auto error = test::error_of(call);
  ASSERT_TRUE(error);
  const std::string text = error->what();
  EXPECT_EQ(error->kind(), rpc::ErrorKind::handler_failed);
  EXPECT_NE(text.find("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), std::string::npos) << text;
  EXPECT_NE(text.find("c10::Error"), std::string::npos) << text;
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::tensor::layers_test
