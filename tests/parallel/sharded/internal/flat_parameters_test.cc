#include <weft/parallel/sharded/internal/flat_parameters.h>

#include <torch/torch.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::sharded::flat_parameters_test {
namespace {

using namespace data_parallel::testing;
using dist_optim::Parameter;

at::Tensor range(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements *= size;
  return at::arange(elements).view(shape).to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
}

TEST(FlatParameter, ChangesOnlyTheMemoryOfParameters) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    const at::Tensor a = range({5, 7}), b = range({20}, at::kDouble), c = range({3}), none = range({0, 2});
    const at::Tensor alias = a.detach().view({-1});
    const void* const storage = a.storage().unsafeGetStorageImpl();
    const auto version = a._version();
    {
      FlatParameters flat(group, {{"a", a}, {"b", b}, {"c", c}, {"none", none}}, 1000);
      ASSERT_EQ(flat.buckets().size(), 2U);
      const auto& bucket = flat.buckets()[0];
      EXPECT_EQ(bucket.parameters, (std::vector<std::size_t>{0, 2, 3}));
      EXPECT_EQ(bucket.buffer.numel(), 2 * bucket.part.numel());
      EXPECT_EQ(bucket.part.const_data_ptr<float>() - bucket.buffer.const_data_ptr<float>(),
                group.rank() * bucket.part.numel());
      EXPECT_EQ(a.const_data_ptr(), bucket.buffer.const_data_ptr());
      EXPECT_EQ(c.const_data_ptr<float>(), bucket.buffer.const_data_ptr<float>() + 48);
      bucket.buffer.narrow(0, 34, 1).fill_(-1);
    }
    EXPECT_EQ(alias[34].item<float>(), -1) << "the memory lives as long as the parameter";
    EXPECT_TRUE(at::equal(alias.slice(0, 0, 34), at::arange(34).to(at::kFloat)));
    EXPECT_TRUE(at::equal(b, at::arange(20).to(at::kDouble)));
    EXPECT_EQ(a.storage().unsafeGetStorageImpl(), storage);
    EXPECT_EQ(a._version(), version);
  });
}

TEST(FlatParameter, ABucketIsClosedAtItsCap) {
  on_ranks(1, [](const Group& group) {
    std::vector<Parameter> parameters;
    for (int i = 0; i < 5; ++i) parameters.push_back({std::to_string(i), range({10})});
    FlatParameters flat(group, parameters, 80);
    ASSERT_EQ(flat.buckets().size(), 3U);
    EXPECT_EQ(flat.buckets()[1].parameters, (std::vector<std::size_t>{2, 3}));
    const at::Tensor alias = parameters[2].tensor.detach();
    flat.leave();
    EXPECT_TRUE(flat.buckets().empty());
    EXPECT_EQ(alias.const_data_ptr(), parameters[2].tensor.const_data_ptr());
    EXPECT_TRUE(at::equal(alias, at::arange(10).to(at::kFloat)));
  });
}

TEST(FlatParameter, TakesTheValuesOfReplacedMemory) {
  on_ranks(1, [](const Group& group) {
    const at::Tensor a = range({4, 3}), b = range({5}), c = range({2});
    FlatParameters flat(group, {{"a", a}, {"b", b}}, 1000);
    flat.add(group, {{"c", c}}, 1000);
    EXPECT_EQ(flat.buckets().at(1).parameters, std::vector<std::size_t>{2});
    a.set_data(at::full({3, 4}, 2.0F).t());
    flat.take_replaced();
    EXPECT_EQ(a.const_data_ptr(), flat.buckets()[0].buffer.const_data_ptr());
    EXPECT_TRUE(at::equal(a, at::full({4, 3}, 2.0F)));
    EXPECT_TRUE(at::equal(b, range({5})));
    b.set_data(at::zeros({6}));
    test::expect_error([&] { flat.take_replaced(); },
                       "parameter b is Float[6] on cpu now, expected Float[5]");
    flat.leave();
    EXPECT_TRUE(at::equal(b, at::zeros({6})));
    EXPECT_TRUE(at::equal(c, range({2})));
  });
}

TEST(FlatParameter, RefusesAParameterByName) {
  const at::Tensor whole = range({4, 4}).detach();
  const auto text = [](const std::vector<Parameter>& parameters) {
    const auto error = error_of([&] { FlatParameters::check(parameters); });
    return error ? std::string(error->what()) : std::string();
  };
  EXPECT_EQ(text({{"a", whole}}), "");
  EXPECT_NE(text({{"a", whole.t()}}).find("parameter a is not contiguous"), std::string::npos);
  EXPECT_NE(text({{"a", whole[1]}}).find("parameter a has 16 bytes of a storage of 64"), std::string::npos);
  EXPECT_NE(
      text({{"a", whole}, {"b", whole.view({-1})}}).find("parameter b shares its storage with parameter a"),
      std::string::npos);
}

}  // namespace
}  // namespace weft::sharded::flat_parameters_test
