#include <weft/parallel/data_parallel/hooks/quantization_hook.h>

#include <cmath>
#include <limits>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::quantization_hook_test {
namespace {

using namespace testing;

const Shapes shapes = {{8, 6}, {5}, {}, {3, 2, 2}, {67}, {700}};

// Computes the values that receivers get for one block, element by element.
std::vector<double> rounded(const std::vector<double>& values) {
  double least = 0, largest = 0;
  for (const double value : values) least = std::min(least, value), largest = std::max(largest, value);
  const auto min = static_cast<float>(least);
  float scale = (static_cast<float>(largest) - min) / 255;
  if (scale == 0) scale = 1;
  const float zero = std::nearbyint(-min / scale);
  std::vector<double> results;
  for (const double value : values) {
    const double level = std::min(std::max(std::nearbyint(value / scale) + zero, 0.0), 255.0);
    results.push_back((level - zero) * scale);
  }
  return results;
}

at::Tensor rounded(const at::Tensor& flat, std::int64_t block) {
  at::Tensor result = flat.clone();
  for (const at::Tensor& part : result.split(block == 0 ? flat.numel() : block)) {
    const auto* begin = part.const_data_ptr<double>();
    const auto values = rounded(std::vector<double>(begin, begin + part.numel()));
    part.copy_(at::tensor(values, at::kDouble));
  }
  return result;
}

at::Tensor real_of(const at::Tensor& buffer) {
  return buffer.is_complex() ? at::view_as_real(buffer).reshape({-1}) : buffer;
}

TEST(QuantizationHook, EqualsTheSameRoundingInOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    Company company(ranks, Backend::memory);
    const auto groups = company.groups();
    for (const at::ScalarType dtype : {at::kDouble, at::kComplexDouble})
      for (const std::int64_t block : {0, 7, 16, 512})
        on_ranks(groups, [&](const Group& group) {
          QuantizationHook hook({.block = block});
          GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0, dtype));
          for (int iteration = 0; iteration < 2; ++iteration) {
            Tensors of_ranks;
            for (int rank = 0; rank < ranks; ++rank) {
              GradientBucket other = bucket_for(group, gradients_of(shapes, 0, 0, dtype));
              const Tensors gradients = gradients_of(shapes, rank, iteration, dtype);
              for (std::size_t i = 0; i < gradients.size(); ++i) other.gradients[i].copy_(gradients[i]);
              of_ranks.push_back(rounded(real_of(other.buffer).clone(), block));
            }
            reduce(hook, group, bucket, gradients_of(shapes, group.rank(), iteration, dtype));
            expect_close({real_of(bucket.buffer)}, {mean(of_ranks)});
          }
          expect_same_bits(group, bucket.buffer);
        });
  }
}

TEST(QuantizationHook, ABucketMayHaveNoElements) {
  for (const std::int64_t block : {0, 512})
    on_ranks(2, Backend::memory, [&](const Group& group) {
      QuantizationHook hook({.block = block});
      GradientBucket bucket = bucket_for(group, {at::zeros({0, 3}, at::kDouble)});
      reduce(hook, group, bucket, {at::zeros({0, 3}, at::kDouble)});
      EXPECT_EQ(bucket.buffer.numel(), 0);
    });
}

TEST(QuantizationHook, ErrorIsAtMostHalfAScale) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    on_ranks(2, Backend::memory, [&](const Group& group) {
      QuantizationHook hook({.block = 32});
      GradientBucket bucket = bucket_for(group, {at::zeros({40, 32}, dtype)});
      const auto own = [&](int rank) { return gradients_of({{40, 32}}, rank, 0, at::kFloat)[0].to(dtype); };
      const at::Tensor result = reduce(hook, group, bucket, {own(group.rank())})[0].to(at::kFloat);
      const at::Tensor a = own(0).to(at::kFloat), b = own(1).to(at::kFloat);
      const auto scale = [](const at::Tensor& rows) {
        return (rows.amax(1, true) - rows.amin(1, true)) / 255;
      };
      const at::Tensor bound = (scale(a) + scale(b)) / 4 * 1.001 + (dtype == at::kFloat ? 1e-6 : 0.02);
      EXPECT_TRUE(((result - (a + b) / 2).abs() <= bound).all().item<bool>()) << dtype;
    });
}

TEST(QuantizationHook, KeepsZerosAndReportsNonFiniteBlocks) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    QuantizationHook hook({.block = 16});
    at::Tensor gradient = at::zeros({64});
    gradient[3] = 5;
    gradient[20] = 1e-20F;  // no smallest scale
    if (group.rank() == 1) {
      gradient[32] = std::numeric_limits<float>::infinity();
      gradient[50] = std::numeric_limits<float>::quiet_NaN();
    }
    GradientBucket bucket = bucket_for(group, {gradient});
    const at::Tensor result = reduce(hook, group, bucket, {gradient})[0];
    at::Tensor expected = gradient.clone();
    expected.slice(0, 32, 64).fill_(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(at::allclose(result, expected, 1e-6, 1e-27, true)) << result;
  });
}

TEST(QuantizationHook, RefusesInvalidOptions) {
  expect_invalid([] { QuantizationHook({.block = -1}); }, "QuantizationHook: block -1, expected 0 or more");
}

}  // namespace
}  // namespace weft::data_parallel::quantization_hook_test
