#include <weft/parallel/data_parallel/bucket_plan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/errors.h"

namespace weft::data_parallel::bucket_plan_test {
namespace {

struct Case {
  std::vector<ParameterSpec> parameters;
  std::vector<std::size_t> caps, order;
};

Case random_case(unsigned seed, bool one_dtype) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  Case made;
  const std::size_t parameters = below(30);
  for (std::size_t i = 0; i < parameters; ++i) {
    const auto dtype = one_dtype || below(2) == 0 ? at::kFloat : at::kDouble;
    made.parameters.push_back({(1 + below(200)) * c10::elementSize(dtype), dtype, at::kCPU, below(10) == 0});
  }
  for (std::size_t i = 0; i <= below(3); ++i) made.caps.push_back(1 + below(1000));
  made.order = reverse_order(parameters);
  std::shuffle(made.order.begin(), made.order.end(), random);
  return made;
}

// c10d's assignment of the parameters in the same order.
BucketPlan oracle(const Case& given) {
  std::vector<at::Tensor> tensors;
  std::vector<bool> sparse(given.order.size());  // by index, unlike the tensors
  std::vector<std::int64_t> indices;
  for (const std::size_t index : given.order) {
    const ParameterSpec& parameter = given.parameters[index];
    const auto elements = parameter.bytes / c10::elementSize(parameter.dtype);
    tensors.push_back(at::empty({static_cast<std::int64_t>(elements)}, parameter.dtype));
    sparse[index] = parameter.sparse;
    indices.push_back(static_cast<std::int64_t>(index));
  }
  if (tensors.empty()) return {};
  const auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(tensors, given.caps, sparse, indices);
  BucketPlan plan;
  for (const auto& bucket : buckets) plan.emplace_back(bucket.begin(), bucket.end());
  return plan;
}

TEST(BucketPlan, OfOneDtypeEqualsThatOfC10d) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Case given = random_case(seed, true);
    EXPECT_EQ(plan_buckets(given.parameters, given.caps, given.order), oracle(given)) << "seed " << seed;
  }
}

// c10d leaves the order of the buckets that were never full to a hash table.
TEST(BucketPlan, OfTwoDtypesHasTheBucketsOfC10d) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Case given = random_case(seed, false);
    auto own = plan_buckets(given.parameters, given.caps, given.order), theirs = oracle(given);
    std::sort(own.begin(), own.end());
    std::sort(theirs.begin(), theirs.end());
    EXPECT_EQ(own, theirs) << "seed " << seed;
  }
}

TEST(BucketPlan, BucketsHaveOneDtypeAndOneDevice) {
  const std::vector<ParameterSpec> parameters = {{4, at::kFloat, at::kCPU},
                                                 {8, at::kDouble, at::kCPU},
                                                 {4, at::kFloat, at::Device(at::kCUDA, 0)},
                                                 {4, at::kFloat, at::Device(at::kCUDA, 1)},
                                                 {4, at::kFloat, at::kCPU}};
  const std::vector<std::size_t> caps = {1000};
  EXPECT_EQ(plan_buckets(parameters, caps, reverse_order(5)), (BucketPlan{{4, 0}, {3}, {2}, {1}}));
}

TEST(BucketPlan, TheLastParametersThatFitBecomeABucket) {
  const std::vector<ParameterSpec> parameters = {{10}, {20}, {30}, {40}};
  const auto split = [&](BucketPlan plan, std::size_t bytes) {
    return split_last_bucket(std::move(plan), parameters, bytes);
  };
  EXPECT_EQ(split({{3}, {2, 1, 0}}, 30), (BucketPlan{{3}, {2}, {1, 0}}));
  EXPECT_EQ(split({{3}, {2, 1, 0}}, 29), (BucketPlan{{3}, {2, 1}, {0}}));
  EXPECT_EQ(split({{3}, {2, 1, 0}}, 60), (BucketPlan{{3}, {2, 1, 0}}));  // fits as a whole
  EXPECT_EQ(split({{3}, {2, 1, 0}}, 9), (BucketPlan{{3}, {2, 1, 0}}));   // not even the last one fits
  EXPECT_EQ(split({}, 30), BucketPlan{});
}

TEST(BucketPlan, RefusesAnOrderThatIsNoPermutation) {
  const std::vector<ParameterSpec> two(2);
  const std::vector<std::size_t> caps = {1}, none;
  const auto kind = [&](std::vector<std::size_t> order, const std::vector<std::size_t>& given) {
    return test::kind_of([&] { plan_buckets(two, given, order); });
  };
  EXPECT_EQ(kind({0, 1}, none), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind({0}, caps), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind({0, 0}, caps), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind({0, 2}, caps), rpc::ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::data_parallel::bucket_plan_test
