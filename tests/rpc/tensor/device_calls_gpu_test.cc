// Tensors on GPUs in calls. Skipped where LibTorch's CUDA libraries or enough GPUs are missing.
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::device_calls_gpu_test {
namespace {

using test::got;

// Loads the CUDA libraries, which weft::libtorch does not link. Returns the number of GPUs, or why there is
// none.
std::pair<int, std::string> gpus() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) return {0, dlerror()};
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return {0, "LibTorch has no CUDA"};
  return {c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount(), "too few GPUs"};
}

// Takes long enough that a copy which does not wait for it has a wrong result.
at::Tensor slow_sum(at::Tensor x) {
  at::Tensor y = x;
  for (int i = 0; i < 200; ++i) y = y.mm(x).clamp(-1, 1);
  return (y * 0 + x).sum().reshape({1});
}
using SlowSum = rpc::Function<"gpu.slow_sum", &slow_sum>;

std::string device_of(at::Tensor x) { return x.device().str(); }
using DeviceOf = rpc::Function<"gpu.device_of", &device_of>;

class DeviceCallsGpu : public ::testing::Test {
 protected:
  void need(int count) {
    const auto [found, why] = gpus();
    if (found < count) GTEST_SKIP() << why;
  }
  void make(const DeviceMap& map) {
    DeviceOptions options;
    options.map("there", map);
    cluster.add("here", layers(options));
    cluster.add("there", layers());
    cluster["there"].serve<SlowSum>();
    cluster["there"].serve<DeviceOf>();
  }
  test::Cluster cluster{{}};
};

TEST_F(DeviceCallsGpu, OneGpu) {
  need(1);
  if (IsSkipped()) return;
  make({{"cuda:0", "cuda:0"}});
  const rpc::Peer there = cluster.peer("here", "there");
  const at::Tensor x = at::rand({2000, 2000});
  for (int i = 0; i < 5; ++i) {
    const c10::StreamGuard guard(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool({c10::kCUDA, 0}));
    at::Tensor late = x.to("cuda:0", /*non_blocking=*/true);
    for (int k = 0; k < 200; ++k) late = late + late.mm(late).clamp(0, 0);
    const at::Tensor sum = got(there.call<SlowSum>(late));
    EXPECT_EQ(sum.device().str(), "cuda:0");
    EXPECT_NEAR(sum.item<double>() / x.sum().item<double>(), 1, 1e-3);
  }
}

TEST_F(DeviceCallsGpu, TwoGpusCrosswise) {
  need(2);
  if (IsSkipped()) return;
  make({{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}});
  const rpc::Peer there = cluster.peer("here", "there");
  for (const auto& [here, other] : {std::pair{"cuda:0", "cuda:1"}, std::pair{"cuda:1", "cuda:0"}}) {
    const at::Tensor x = at::ones({500, 500}).to(here);
    EXPECT_EQ(got(there.call<DeviceOf>(x)), other);
    const at::Tensor sum = got(there.call<SlowSum>(x));
    EXPECT_EQ(sum.device().str(), here);
    EXPECT_EQ(sum.item<float>(), 250000);
  }
}

}  // namespace
}  // namespace weft::tensor::device_calls_gpu_test
