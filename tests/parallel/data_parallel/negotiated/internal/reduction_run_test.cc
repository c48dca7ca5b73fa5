#include <weft/parallel/data_parallel/negotiated/internal/reduction_run.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::reduction_run_test {
namespace {

using namespace testing;

constexpr std::uint64_t large = std::uint64_t{64} << 20;

TEST(FusionMemory, HasAboutTheSizeOfItsLaunches) {
  Company company(1);
  FusionMemory memory(company.groups()[0], at::kCPU);
  at::Tensor first = memory.take(1280, large);
  EXPECT_EQ(first.nbytes(), 2048U);
  const at::Tensor second = memory.take(100, large);  // while the first is in use
  EXPECT_EQ(second.nbytes(), 128U);
  const void* const data = first.const_data_ptr();
  memory.give_back(std::move(first));
  at::Tensor again = memory.take(2000, large);
  EXPECT_EQ(again.const_data_ptr(), data);
  memory.give_back(std::move(again));
  EXPECT_EQ(memory.take(5000, large).nbytes(), 8192U);
  EXPECT_EQ(memory.take(large - 1, large).nbytes(), large);
  EXPECT_EQ(memory.take(large + 5, large).nbytes(), large + 5);
}

}  // namespace
}  // namespace weft::data_parallel::reduction_run_test
