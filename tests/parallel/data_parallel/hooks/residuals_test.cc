#include <weft/parallel/data_parallel/hooks/residuals.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::residuals_test {
namespace {

using namespace testing;

at::Tensor filled(double value) { return at::full({2, 3}, value, at::kDouble); }

TEST(Residuals, AreAddedInPlace) {
  Residuals residuals;
  at::Tensor sum = filled(5);
  residuals.keep(7, sum);
  residuals.take(7, sum, filled(2));
  expect_close({sum}, {filled(7)});
}

// Two passes in flight both take the residual before they keep theirs.
TEST(Residuals, OfTwoReductionsAddUp) {
  Residuals residuals;
  const at::Tensor one = filled(0), two = filled(0), sum = filled(0);
  residuals.take(7, one, filled(1));
  residuals.take(7, two, filled(2));
  residuals.keep(7, one);
  residuals.keep(7, two);
  residuals.take(7, sum, filled(4));
  expect_close({sum}, {filled(7)});
}

}  // namespace
}  // namespace weft::data_parallel::residuals_test
