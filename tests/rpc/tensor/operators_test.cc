#include <weft/rpc/tensor/operators.h>

#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/dynamic_call.h>
#include <weft/rpc/tensor/layers.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::operators_test {
namespace {

using rpc::ErrorKind;
using namespace test;

class OperatorsTest : public testing::Test {
 protected:
  OperatorsTest()
      : cluster_({.layers = layers()}, {"here", "there"}), peer_(cluster_.peer("here", "there")) {}
  void allow(const std::vector<std::string_view>& names) { allow_operators(cluster_["there"], names); }

  test::Cluster cluster_;
  rpc::Peer peer_;
};

TEST_F(OperatorsTest, AnAllowedOperatorRuns) {
  allow({"aten::mm", "aten::add.Tensor"});
  const at::Tensor a = at::rand({3, 4}), b = at::rand({4, 5});
  EXPECT_TRUE(got(call_operator(peer_, "aten::mm", a, b)).equal(a.mm(b)));
  EXPECT_TRUE(got(call_operator(peer_, "aten::add.Tensor", a, a, 2)).equal(a.add(a, 2))) << "a scalar";
  EXPECT_TRUE(got(call_operator(peer_, "aten::add.Tensor", a, a)).equal(a.add(a))) << "its default";
}

TEST_F(OperatorsTest, AnotherOperatorIsNotFound) {
  allow({"aten::mm"});
  const at::Tensor a = at::rand({3});
  EXPECT_EQ(kind_of([&] { got(call_operator(peer_, "aten::sin", a)); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { got(call_operator(peer_, "aten::mm.out", a, a, a)); }), ErrorKind::not_found);
}

TEST_F(OperatorsTest, EveryKindOfArgumentAndResultIsSupported) {
  allow({"aten::sum.dim_IntList", "aten::cat", "aten::topk", "aten::allclose", "aten::split.Tensor",
         "aten::item", "aten::to.dtype", "aten::gelu", "aten::clamp", "aten::upsample_nearest2d.vec",
         "aten::index.Tensor", "aten::equal"});
  const at::Tensor a = at::rand({4, 6});
  EXPECT_TRUE(
      got(call_operator(peer_, "aten::sum.dim_IntList", a, std::vector<std::int64_t>{1}, true, "float64"))
          .equal(a.sum({1}, true, at::kDouble)))
      << "a list, a bool, a dtype";
  EXPECT_TRUE(got(call_operator(peer_, "aten::cat", std::vector{a, a}, 1)).equal(at::cat({a, a}, 1)));
  const auto [values, indices] =
      got(call_operator<std::tuple<at::Tensor, at::Tensor>>(peer_, "aten::topk", a, 2));
  EXPECT_TRUE(values.equal(std::get<0>(a.topk(2))));
  EXPECT_TRUE(indices.equal(std::get<1>(a.topk(2))));
  EXPECT_TRUE(got(call_operator<bool>(peer_, "aten::allclose", a, a, 1e-5)));
  EXPECT_EQ(got(call_operator<std::vector<at::Tensor>>(peer_, "aten::split.Tensor", a, 2, 0)).size(), 2U);
  EXPECT_EQ(got(call_operator<double>(peer_, "aten::item", at::tensor(2.5))), 2.5);
  EXPECT_EQ(got(call_operator(peer_, "aten::to.dtype", a, "bfloat16")).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(got(call_operator(peer_, "aten::gelu", a, std::string("tanh"))).equal(at::gelu(a, "tanh")));
  EXPECT_TRUE(got(call_operator(peer_, "aten::clamp", a, std::optional<double>(), 0.5))
                  .equal(at::clamp(a, std::nullopt, 0.5)));
  const at::Tensor image = at::rand({1, 1, 2, 2});
  EXPECT_TRUE(
      got(call_operator(peer_, "aten::upsample_nearest2d.vec", image,
                        std::optional<std::vector<std::int64_t>>(), std::vector<double>{2, 2}))
          .equal(at::upsample_nearest2d(image, at::OptionalIntArrayRef(), std::vector<double>{2, 2})));
  const at::Tensor rows = at::tensor({1, 2});
  EXPECT_TRUE(got(call_operator(peer_, "aten::index.Tensor", a, std::vector<at::Tensor>{at::Tensor(), rows}))
                  .equal(a.index_select(1, rows)));
}

// Encodes arguments from the listing alone: numbers as a variant, and optional values wrapped.
TEST_F(OperatorsTest, ArgumentsMayBeEncodedFromTheListing) {
  allow({"aten::add.Tensor", "aten::clamp"});
  const at::Tensor a = at::tensor({1.0, 2.0, 3.0});
  const auto result = [&](std::string_view name, const std::function<void(rpc::ValueWriter)>& last) {
    const auto reply = got(rpc::call_by_name(peer_, name, 3, [&](rpc::OutgoingMessage& message) {
      rpc::Codec<at::Tensor>::encode(message.argument(0), a);
      if (name == "aten::clamp") {
        message.argument(1).set_nil();
      } else {
        rpc::Codec<at::Tensor>::encode(message.argument(1), a);
      }
      last(message.argument(2));
    }));
    return rpc::Codec<at::Tensor>::decode(reply.result());
  };
  EXPECT_TRUE(
      result("aten::add.Tensor", [](rpc::ValueWriter w) { w.set_variant(0).set_int(2); }).equal(a + 2 * a));
  EXPECT_TRUE(result("aten::clamp", [](rpc::ValueWriter w) {
                w.set_variant(1).set_variant(1).set_real(2.5);
              }).equal(at::clamp(a, std::nullopt, 2.5)));
}

TEST_F(OperatorsTest, WrongArgumentsAreErrorsThatNameThem) {
  allow({"aten::mm"});
  const at::Tensor a = at::rand({3, 4});
  EXPECT_EQ(message_of([&] { got(call_operator(peer_, "aten::mm", a)); }),
            "there: aten::mm: argument 1 (mat2) is missing: expected tensor");
  EXPECT_EQ(kind_of([&] { got(call_operator(peer_, "aten::mm", a, a, a)); }), ErrorKind::type_mismatch);
  EXPECT_EQ(kind_of([&] { got(call_operator(peer_, "aten::mm", a, 5)); }), ErrorKind::type_mismatch);
  const auto shapes = test::error_of([&] { got(call_operator(peer_, "aten::mm", a, a)); });
  ASSERT_TRUE(shapes);
  EXPECT_EQ(shapes->kind(), ErrorKind::invalid_argument);
  EXPECT_NE(std::string(shapes->what()).find("3x4 and 3x4"), std::string::npos) << shapes->what();
  EXPECT_EQ(std::string(shapes->what()).find("frame #"), std::string::npos) << "no backtrace of the callee";
}

// The wait fails with the first error, while an operator is still in flight at an agent that is blocked.
TEST_F(OperatorsTest, AFailedOperatorFailsTheWaitForAll) {
  allow({"aten::mm"});
  rpc::Agent& busy = cluster_.add("busy");
  cluster_.acquaint();
  allow_operators(busy, {"aten::add.Tensor"});
  const at::Tensor a = at::rand({3, 4});
  const rpc::Peer to_busy = cluster_.peer("here", "busy");
  got(call_operator(to_busy, "aten::add.Tensor", a, a));
  test::HeldLoop held(busy);
  struct GoesOn {
    test::Event ended;
    at::Tensor sum;
  };
  const auto goes_on = std::make_shared<GoesOn>();
  std::vector<rpc::Future<at::Tensor>> calls;
  calls.push_back(
      call_operator(to_busy, "aten::add.Tensor", a, a).then([goes_on](rpc::Result<at::Tensor>&& result) {
        goes_on->sum = std::move(result).get();
        goes_on->ended.set();
        return at::Tensor();
      }));
  calls.push_back(call_operator(peer_, "aten::mm", a, a));
  expect_error([&] { got(rpc::when_all_or_error(std::move(calls))); }, ErrorKind::invalid_argument,
               "aten::mm");
  EXPECT_FALSE(goes_on->sum.defined());
  held.release();
  goes_on->ended.wait();
  EXPECT_TRUE(goes_on->sum.equal(a + a));
}

TEST_F(OperatorsTest, UnsupportedOperatorsAreRefused) {
  EXPECT_EQ(kind_of([&] {
              allow({"aten::no_such_thing"});
              return 0;
            }),
            ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] {
              allow({"aten::add"});
              return 0;
            }),
            ErrorKind::not_found)
      << "its overloads have names";
  allow({"aten::mm"});
  EXPECT_EQ(kind_of([&] {
              allow({"aten::mm"});
              return 0;
            }),
            ErrorKind::already_exists);
}

TEST_F(OperatorsTest, AllowedOperatorsAreListedLikeMethods) {
  allow({"aten::mm"});
  const auto methods = got(rpc::list_methods(peer_));
  const auto mm =
      std::find_if(methods.begin(), methods.end(), [](const auto& m) { return m.name == "aten::mm"; });
  ASSERT_NE(mm, methods.end());
  EXPECT_EQ(mm->signature, "(tensor,tensor)->tensor");
}

}  // namespace
}  // namespace weft::tensor::operators_test
