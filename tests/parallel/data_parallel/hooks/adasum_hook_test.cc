#include <weft/parallel/data_parallel/hooks/adasum_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::adasum_hook_test {
namespace {

using namespace testing;

const Shapes shapes = {{8, 6}, {5}, {}, {3, 2, 2}};

TEST(AdasumHook, EqualsTheRecursionInOneProcess) {
  for (const int ranks : {1, 2, 4})
    for (const Backend backend : {Backend::memory, Backend::messages}) {
      Company company(ranks, backend);
      for (const at::ScalarType dtype : {at::kDouble, at::kComplexDouble, at::kFloat}) {
        Tensors expected;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          Tensors of_ranks;
          for (int rank = 0; rank < ranks; ++rank)
            of_ranks.push_back(gradients_of(shapes, rank, 0, dtype)[i]);
          expected.push_back(adasum(of_ranks, 0, of_ranks.size()));
        }
        on_ranks(company.groups(), [&](const Group& group) {
          AdasumHook hook;
          const Tensors own = gradients_of(shapes, group.rank(), 0, dtype);
          GradientBucket bucket = bucket_for(group, own);
          for (int i = 0; i < 2; ++i)
            expect_close(reduce(hook, group, bucket, own), expected, dtype == at::kFloat ? 1e-5 : 1e-10);
          expect_same_bits(group, bucket.buffer);
        });
      }
    }
}

TEST(AdasumHook, AddsOrthogonalAndAveragesEqualGradients) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    AdasumHook hook;
    at::Tensor unit = at::zeros({4}, at::kDouble);
    unit[group.rank()] = 3;
    const at::Tensor equal = at::full({4}, 2, at::kDouble), zero = at::zeros({4}, at::kDouble);
    GradientBucket bucket = bucket_for(group, {unit, equal, zero});
    expect_close(reduce(hook, group, bucket, {unit, equal, zero}),
                 {at::tensor({3, 3, 0, 0}, at::kDouble), equal, zero});
  });
}

TEST(AdasumHook, RefusesThreeRanks) {
  on_ranks(3, Backend::memory, [&](const Group& group) {
    AdasumHook hook;
    GradientBucket bucket = bucket_for(group, {at::ones({4})});
    expect_invalid([&] { reduce(hook, group, bucket); }, "AdasumHook: 3 ranks, expected a power of two");
  });
}

}  // namespace
}  // namespace weft::data_parallel::adasum_hook_test
