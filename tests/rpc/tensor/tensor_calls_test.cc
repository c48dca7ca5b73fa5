// Tensors in calls: in every kind of container, with many calls in flight at once, and operators in traces.
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/operators.h>
#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rpc/trace/tracer.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::tensor_calls_test {
namespace {

using test::got;

struct Batch {
  at::Tensor images;
  std::vector<at::Tensor> parts;
  std::map<std::string, std::vector<at::Tensor>> named;
  std::optional<at::Tensor> mask;
};
WEFT_CODEC(Batch, images, parts, named, mask)

struct Sums {
  at::Tensor of_all(std::vector<at::Tensor> list, Batch batch, std::map<std::string, at::Tensor> map,
                    std::tuple<at::Tensor, std::vector<Batch>> nested) {
    at::Tensor sum = batch.images.clone();
    const auto add = [&](const at::Tensor& tensor) { sum += tensor; };
    for (const auto& each : list) add(each);
    for (const auto& each : batch.parts) add(each);
    for (const auto& [name, each] : batch.named)
      for (const auto& tensor : each) add(tensor);
    if (batch.mask) add(*batch.mask);
    for (const auto& [name, each] : map) add(each);
    add(std::get<0>(nested));
    for (const Batch& each : std::get<1>(nested)) add(each.images);
    return sum;
  }
  at::Tensor add(at::Tensor x, at::Tensor y) { return x + y; }
  Batch back(Batch batch) { return batch; }
  using Service = rpc::Service<"sums", rpc::Method<"of_all", &Sums::of_all>, rpc::Method<"add", &Sums::add>,
                               rpc::Method<"back", &Sums::back>>;
};

class TensorCalls : public testing::Test {
 protected:
  TensorCalls() {
    for (const auto& [name, tracer] : tracers) {
      rpc::Layers all = layers();
      all.push_back(tracer->layer());
      cluster.add(name, all);
    }
    cluster["there"].serve(std::make_shared<Sums>());
    allow_operators(cluster["there"], {"aten::add.Tensor"});
  }
  std::map<std::string, std::shared_ptr<rpc::Tracer>> tracers{{"here", std::make_shared<rpc::Tracer>()},
                                                              {"there", std::make_shared<rpc::Tracer>()}};
  test::Cluster cluster{{}};
};

TEST_F(TensorCalls, InListsMapsStructsAndNestedContainers) {
  const auto one = [](double value) { return at::full({3, 3}, value); };
  const Batch batch{one(1), {one(2), one(4)}, {{"a", {one(8)}}, {"b", {one(16), one(32)}}}, one(64)};
  const std::map<std::string, at::Tensor> map{{"foo", one(128)}, {"bar", one(256)}};
  const Batch inner{one(1024), {}, {}, {}};
  const at::Tensor sum = got(cluster.peer("here", "there")
                                 .call<&Sums::of_all>(std::vector{one(2048), one(4096)}, batch, map,
                                                      std::tuple{one(512), std::vector{inner, inner}}));
  EXPECT_TRUE(sum.equal(one(1 + 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256 + 512 + 2 * 1024 + 2048 + 4096)));
  const Batch back = got(cluster.peer("here", "there").call<&Sums::back>(batch));
  EXPECT_TRUE(back.named.at("b").at(1).equal(one(32)));
  EXPECT_TRUE(back.mask->equal(one(64)));
}

TEST_F(TensorCalls, AHundredOfDifferentSizesAtOnce) {
  std::vector<at::Tensor> given;
  std::vector<rpc::Future<at::Tensor>> results;
  for (std::int64_t i = 0; i < 100; ++i) {
    given.push_back(at::rand({i, i}));
    results.push_back(cluster.peer("here", "there").call<&Sums::add>(given.back(), given.back()));
  }
  const auto all = got(rpc::when_all(std::move(results)));
  for (std::size_t i = 0; i < 100; ++i) EXPECT_TRUE(all[i].equal(given[i] + given[i])) << i;
}

TEST_F(TensorCalls, OfOperatorsHaveSpans) {
  const at::Tensor x = at::ones({2});
  auto later = call_operator(cluster.peer("here", "there"), "aten::add.Tensor", x, x);
  EXPECT_TRUE(got(std::move(later)).equal(x + x));
  const auto made = tracers["here"]->take().spans, served = tracers["there"]->take().spans;
  ASSERT_EQ(made.size(), 1U);
  ASSERT_EQ(served.size(), 1U);
  EXPECT_EQ(made[0].name, "aten::add.Tensor");
  EXPECT_EQ(served[0].name, "aten::add.Tensor");
  EXPECT_FALSE(made[0].served);
  EXPECT_TRUE(served[0].served);
  EXPECT_EQ(served[0].parent, made[0].id);
  EXPECT_EQ(made[0].peer, "there");
  EXPECT_EQ(served[0].peer, "here");
}

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
}  // namespace weft::tensor::tensor_calls_test
