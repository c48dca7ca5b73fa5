#include <weft/parallel/training/clip_gradients.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::training::clip_gradients_test {
namespace {

using namespace data_parallel::testing;

// Only rank 0 has a complex and a sparse gradient.
TEST(ClipGradients, MayBeComplexOrSparse) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double p : {1.0, 2.0, 3.5, infinity})
    on_ranks(2, Backend::memory, [&](const Group& group) {
      const at::Tensor dense = at::tensor({1.0, -2.0}, at::kDouble);
      const at::Tensor complex =
          at::complex(at::tensor({3.0, 0.0}, at::kDouble), at::tensor({4.0, -1.0}, at::kDouble));
      // The first place occurs twice: the element is 2 + 4.
      const at::Tensor sparse = at::sparse_coo_tensor(at::tensor({0, 0, 2}, at::kLong).view({1, 3}),
                                                      at::tensor({2.0, 4.0, -1.0}, at::kDouble), {4});
      const at::Tensor all = at::tensor({1.0, -2.0, 1.0, -2.0, 5.0, 1.0, 6.0, -1.0}, at::kDouble);
      const double expected = all.norm(p).item<double>(), scale = 0.5 / (expected + 1e-6);
      std::vector<at::Tensor> gradients{dense, at::Tensor()};
      if (group.rank() == 0) gradients.insert(gradients.end(), {complex.clone(), sparse.clone()});
      EXPECT_NEAR(clip_gradients(gradients, gradients, {group}, 0.5, p), expected, 1e-12);
      expect_close({dense}, {at::tensor({1.0, -2.0}, at::kDouble) * scale});
      if (group.rank() == 1) return;
      expect_close({at::view_as_real(gradients[2]), gradients[3].to_dense()},
                   {at::view_as_real(complex) * scale, sparse.to_dense() * scale});
    });
}

TEST(ClipGradients, ANormThatIsNotFiniteIsReturnedOnAllRanks) {
  for (const double p : {2.0, std::numeric_limits<double>::infinity()})
    on_ranks(2, Backend::memory, [&](const Group& group) {
      const at::Tensor gradient = at::ones({3});
      if (group.rank() == 1) gradient[1] = std::nan("");
      EXPECT_TRUE(std::isnan(clip_gradients({gradient}, {gradient}, {group}, 1, p)));
      EXPECT_EQ(clip_gradients({}, {}, {group}, 1, p), 0);
    });
}

}  // namespace
}  // namespace weft::training::clip_gradients_test
