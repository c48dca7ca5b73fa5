#include <weft/parallel/data_parallel/hooks/model_averager.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::model_averager_test {
namespace {

using namespace testing;

at::Tensor value_of(int rank, int step) { return at::full({3, 2}, 10.0 * step + rank, at::kDouble); }

TEST(ModelAverager, AveragesAllTypesAndLayouts) {
  on_ranks(3, Backend::memory, [&](const Group& group) {
    const auto own = [](int rank) {
      const Shapes shapes = {{4, 3}, {}};
      Tensors all = gradients_of(shapes, rank, 0);
      for (const at::ScalarType dtype : {at::kFloat, at::kComplexDouble})
        for (const at::Tensor& each : gradients_of(shapes, rank, 1, dtype)) all.push_back(each);
      all.push_back(gradients_of({{5, 4}}, rank, 2)[0].t().contiguous().t());
      all[0].requires_grad_();
      return all;
    };
    Tensors tensors = own(group.rank());
    average_parameters(group, tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(at::allclose(tensors[i], mean({own(0)[i], own(1)[i], own(2)[i]}), 1e-6, 1e-6)) << i;
    EXPECT_TRUE(tensors[0].requires_grad() && tensors[0].is_leaf());
  });
}

// Every 2 steps within pairs, every 6 steps among all, after one step of warm-up.
TEST(ModelAverager, TheLargestDuePeriodApplies) {
  on_ranks(4, Backend::memory, [&](const Group& group) {
    const Group pair = group.split(group.rank() / 2).get().value();
    PeriodicModelAverager averager({{2, pair}, {6, group}}, 1), resumed({{2, pair}, {6, group}}, 1);
    for (int step = 1; step <= 14; ++step) {
      if (step == 6) copy_state(averager, resumed);
      PeriodicModelAverager& used = step < 6 ? averager : resumed;
      const at::Tensor parameter = value_of(group.rank(), step);
      const bool averaged = used.step({parameter});
      EXPECT_EQ(used.steps(), step);
      EXPECT_EQ(averaged, step == 3 || step == 5 || step == 7 || step == 9 || step == 11 || step == 13);
      const int first = group.rank() / 2 * 2;
      at::Tensor expected = value_of(group.rank(), step);
      if (step == 7 || step == 13)
        expected = (value_of(0, step) + value_of(3, step)) / 2;
      else if (averaged)
        expected = (value_of(first, step) + value_of(first + 1, step)) / 2;
      expect_close({parameter}, {expected});
    }
  });
}

TEST(ModelAverager, RefusesInvalidOptions) {
  Company company(1, Backend::memory);
  const Group group = company.groups()[0];
  expect_invalid([] { PeriodicModelAverager({}); }, "PeriodicModelAverager: 0 groups, expected 1 or more");
  expect_invalid([&] { PeriodicModelAverager({{0, group}}); },
                 "PeriodicModelAverager: period 0, expected 1 or more");
  expect_invalid([&] { PeriodicModelAverager({{1, group}}, -1); },
                 "PeriodicModelAverager: warmup_steps -1, expected 0 or more");
}

}  // namespace
}  // namespace weft::data_parallel::model_averager_test
