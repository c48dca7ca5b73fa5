#include <weft/parallel/data_parallel/hooks/residuals.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::residuals_test {
namespace {

using namespace testing;

at::Tensor filled(double value) { return at::full({2, 3}, value, at::kDouble); }

TEST(Residuals, AreAddedToTheNextGradientOnce) {
  Residuals residuals;
  at::Tensor sum = filled(0);
  residuals.take(7, sum, filled(1));
  expect_close({sum}, {filled(1)});
  residuals.keep(7, filled(10));
  residuals.take(7, sum, filled(2));
  expect_close({sum}, {filled(12)});
  residuals.take(7, sum, filled(3));
  expect_close({sum}, {filled(3)});
}

TEST(Residuals, AreAddedInPlace) {
  Residuals residuals;
  at::Tensor sum = filled(5);
  residuals.keep(7, sum);
  residuals.take(7, sum, filled(2));
  expect_close({sum}, {filled(7)});
}

TEST(Residuals, AreSavedAndLoaded) {
  Residuals residuals, empty, loaded;
  copy_state(empty, loaded);
  at::Tensor whole = at::arange(12, at::kDouble).view({4, 3});
  residuals.keep(0, whole.slice(0, 0, 2));
  residuals.keep(300, whole.slice(0, 2, 4));
  copy_state(residuals, loaded);
  whole.zero_();  // the copy has its own memory
  at::Tensor sum = filled(0);
  loaded.take(300, sum, filled(1));
  expect_close({sum}, {at::arange(7, 13, at::kDouble).view({2, 3})});
  loaded.take(0, sum, filled(0));
  expect_close({sum}, {at::arange(6, at::kDouble).view({2, 3})});
}

TEST(Residuals, RefuseAnotherShape) {
  Residuals residuals;
  residuals.keep(2, filled(1));
  at::Tensor sum = at::zeros({6}, at::kDouble);
  expect_invalid([&] { residuals.take(2, sum, sum); },
                 "Residuals: the residual of parameter 2 has the shape [2, 3], expected [6]");
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
