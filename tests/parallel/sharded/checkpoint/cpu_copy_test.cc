// Copies of a state in host memory.
#include <weft/parallel/sharded/checkpoint/cpu_copy.h>

#include "tests/parallel/sharded/checkpoint/states.h"
#include "tests/support/fake_accelerator.h"

namespace weft::sharded::testing {
namespace host_state_test {

std::map<std::string, SlicedTensor> of(const at::Tensor& values) {
  return {{"x", {{values.numel()}, 0, values}}};
}

// The streams of the device execute only work that is waited for.
TEST(CpuCopy, DeviceTensorsAreCopiedWhenCopyReturns) {
  test::FakeAccelerator::install();
  const at::Device device(test::FakeAccelerator::type, 1);
  CpuCopy state;
  const void* memory = nullptr;
  for (int round = 0; round < 3; ++round) {
    const at::Tensor host = at::arange(1000, at::kFloat) + round;
    state.copy(of(host.to(device)));
    const at::Tensor& copy = state.tensors().at("x").values;
    EXPECT_TRUE(copy.device().is_cpu());
    EXPECT_TRUE(copy.is_pinned());
    expect_same(copy, host, "x");
    EXPECT_TRUE(round == 0 || copy.const_data_ptr() == memory) << "the memory is kept";
    memory = copy.const_data_ptr();
  }
}

TEST(CpuCopy, MemoryIsKeptAsLongAsItFits) {
  CpuCopy state;
  state.copy(of(at::ones({100})));
  const void* const memory = state.tensors().at("x").values.const_data_ptr();
  state.copy(of(at::zeros({100})));
  EXPECT_EQ(state.tensors().at("x").values.const_data_ptr(), memory);
  expect_same(state.tensors().at("x").values, at::zeros({100}), "x");
  state.copy({});
  EXPECT_TRUE(state.tensors().empty());
}

}  // namespace host_state_test
}  // namespace weft::sharded::testing
