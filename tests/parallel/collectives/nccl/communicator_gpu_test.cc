// NCCL itself. Skipped where LibTorch's CUDA libraries, NCCL or enough GPUs are missing.
#include <weft/rpc/core/asio_loop.h>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iostream>
#include <thread>

#include "tests/parallel/collectives/nccl/rank_processes.h"
#include "tests/parallel/collectives/nccl/tensor_calls.h"
#include "tests/support/errors.h"

namespace weft::collectives::nccl::testing {
namespace communicator_gpu_test {

using namespace std::chrono_literals;
using collectives::testing::RankProcess;
using collectives::testing::RankProcesses;
using rpc::ErrorKind;
using test::kind_of;

TEST(NcclLibrary, ExportsTheFunctionsThatWeftCalls) {  // needs no GPU
  std::string why;
  const auto api = library(why);
  if (api == nullptr) GTEST_SKIP() << why;
  EXPECT_GE(api->version, 21900);
  EXPECT_NE(std::string(api->get_error_string(Result::remote_error)), "");
  std::cout << "NCCL " << api->version_text() << "\n";
}

// Ranks in this process, each on a separate GPU.
class NcclGpu : public ::testing::Test {
 protected:
  void need(int count) {
    std::string why = "too few GPUs";
    const int found = gpus(why);
    api = found >= count ? library(why) : nullptr;
    if (api == nullptr) GTEST_SKIP() << why;
  }
  void make(int size) {
    const UniqueId id = Communicator::unique_id(*api);
    std::vector<rpc::Future<Communicator::Ptr>> making;
    for (int rank = 0; rank < size; ++rank) {
      backgrounds.push_back(std::make_shared<rpc::AsioLoop>());
      devices.push_back(device_of(gpu(rank), api, loop, backgrounds.back()));
      CommunicatorOptions options;
      options.name = "gpus";
      options.timeout = 60s;
      making.push_back(Communicator::create(devices.back(), id, size, rank, options));
    }
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(making[std::size_t(rank)].get(), gpu(rank));
  }
  void TearDown() override {
    for (auto& rank : ranks) (void)rank.communicator()->abort("the test ends");
    ranks.clear();
    for (auto& background : backgrounds) background->stop();
    loop->stop();
  }
  static c10::Device gpu(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }
  void all(const std::function<rpc::Future<void>(int, TensorCalls&)>& f) {
    std::vector<rpc::Future<void>> done;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      done.push_back(f(static_cast<int>(rank), ranks[rank]));
    for (auto& one : done) one.get();
  }

  std::shared_ptr<const Api> api;
  std::shared_ptr<rpc::AsioLoop> loop = std::make_shared<rpc::AsioLoop>();
  std::vector<std::shared_ptr<rpc::AsioLoop>> backgrounds;
  std::vector<Device> devices;
  std::vector<TensorCalls> ranks;
};

TEST_F(NcclGpu, OneRankOfEveryType) {
  need(1);
  if (IsSkipped()) return;
  make(1);
  for (const auto type : {at::kChar, at::kByte, at::kInt, at::kUInt32, at::kLong, at::kUInt64, at::kHalf,
                          at::kBFloat16, at::kFloat, at::kDouble, at::kBool, at::kComplexFloat}) {
    const at::Tensor x = torch::ones({100}).to(type).to(gpu(0));
    ranks[0].all_reduce(x, ReduceOp::sum).get();
    EXPECT_TRUE(torch::equal(x.cpu(), torch::ones({100}).to(type))) << c10::toString(type);
  }
  const at::Tensor y = torch::ones({100}, gpu(0));
  ranks[0].all_reduce(y, ReduceOp::premul_sum(0.5)).get();
  EXPECT_EQ(y.sum().item<float>(), 50);
  const at::Tensor z = torch::empty_like(y);
  ranks[0].all_gather(z, y).get();
  EXPECT_TRUE(torch::equal(z, y));
  ranks[0].communicator()->close().get();
}

TEST_F(NcclGpu, ACollectiveFollowsTheWorkOnItsStream) {
  need(1);
  if (IsSkipped()) return;
  make(1);
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  for (int i = 0; i < 10; ++i) {
    const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(gpu(0)));
    at::Tensor x = torch::rand({1000, 1000}, gpu(0));
    for (int k = 0; k < 50; ++k) x = x.mm(x).clamp(-1, 1);
    const at::Tensor late = x * 0 + 3, out = torch::empty_like(late);
    auto done = ranks[0].all_gather(out, late);
    EXPECT_EQ(out.sum().item<float>(), 3e6F);
    done.get();
  }
}

// The test captures with the CUDA runtime, while the watch queries events of other work.
TEST_F(NcclGpu, InAGraph) {
  need(1);
  if (IsSkipped()) return;
  make(1);
  void* runtime = nullptr;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"})
    if (runtime == nullptr) runtime = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(runtime, nullptr);
  const auto begin = reinterpret_cast<int (*)(void*, int)>(dlsym(runtime, "cudaStreamBeginCapture"));
  const auto end = reinterpret_cast<int (*)(void*, void**)>(dlsym(runtime, "cudaStreamEndCapture"));
  const auto instantiate =
      reinterpret_cast<int (*)(void**, void*, unsigned long long)>(dlsym(runtime, "cudaGraphInstantiate"));
  const auto launch = reinterpret_cast<int (*)(void*, void*)>(dlsym(runtime, "cudaGraphLaunch"));

  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const at::Tensor x = torch::ones({1000}, gpu(0)), other = torch::ones({1 << 24}, gpu(0));
  const float factor = 2;
  ranks[0].all_reduce(x, ReduceOp::premul_sum(factor)).get();  // connected
  const c10::Stream stream = cuda.getStreamFromGlobalPool(gpu(0));
  void* const native = cuda.getStreamNativeHandle(stream);
  cuda.synchronizeDevice(0);
  std::vector<rpc::Future<void>> meanwhile;
  for (int i = 0; i < 50; ++i) meanwhile.push_back(ranks[0].all_reduce(other));
  void *graph = nullptr, *instance = nullptr;
  {
    const c10::StreamGuard guard(stream);
    ASSERT_EQ(begin(native, 0), 0);  // the strictest mode
    EXPECT_TRUE(ranks[0].all_reduce(x, ReduceOp::premul_sum(factor)).ready());
    std::this_thread::sleep_for(20ms);  // the watch queries events in this time
    ASSERT_EQ(end(native, &graph), 0);
  }
  for (auto& one : meanwhile) one.get();
  ASSERT_EQ(instantiate(&instance, graph, 0), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(launch(instance, native), 0);
  stream.synchronize();
  EXPECT_EQ(x.mean().item<float>(), 16);
}

TEST_F(NcclGpu, TwoGpus) {
  need(2);
  if (IsSkipped()) return;
  make(2);
  std::vector<at::Tensor> x;
  for (int rank = 0; rank < 2; ++rank)
    x.push_back(torch::full({1 << 20}, rank + 1, gpu(rank)).to(torch::kFloat));
  std::vector<at::Tensor> out;
  for (int rank = 0; rank < 2; ++rank) out.push_back(torch::empty({1 << 20}, gpu(rank)));
  // One thread launches for both ranks, so the first launch must not wait for the second one. The launch that
  // connects is split into two.
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto& it = ranks[std::size_t(rank)];
      it.all_reduce(x[std::size_t(rank)]).get();
      auto sent = rank == 0 ? it.send(x[0], 1) : it.recv(out[1], 0);
      sent.get();
      it.all_to_all(out[std::size_t(rank)], x[std::size_t(rank)]).get();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(x[1].mean().item<float>(), 3);
  EXPECT_EQ(out[1].mean().item<float>(), 3);
}

// --- Two processes on one GPU ---

std::string text_of(const UniqueId& id) {
  std::string text;
  for (const char byte : id.bytes)
    text += static_cast<char>('a' + (byte >> 4 & 15)), text += static_cast<char>('a' + (byte & 15));
  return text;
}

UniqueId id_of(const std::string& text) {
  UniqueId id;
  for (std::size_t i = 0; i < id.bytes.size(); ++i)
    id.bytes[i] = static_cast<char>((text.at(2 * i) - 'a') << 4 | (text.at(2 * i + 1) - 'a'));
  return id;
}

TEST(NcclTwoProcesses, DISABLED_Rank) {
  const auto process = RankProcess::here();
  if (!process) GTEST_SKIP() << "started only by OneOfTwoOnOneGpuIsKilled";
  process->run([&](const std::shared_ptr<const Api>& api) {
    UniqueId id;
    if (process->rank() == 0) {
      id = Communicator::unique_id(*api);
      process->say(text_of(id));
    } else {
      id = id_of(process->next_line());
    }
    const auto loop = std::make_shared<rpc::AsioLoop>(), background = std::make_shared<rpc::AsioLoop>();
    const c10::Device gpu(c10::kCUDA, 0);
    CommunicatorOptions options;
    options.timeout = 20s;
    const TensorCalls ranks(
        Communicator::create(device_of(gpu, api, loop, background), id, 2, process->rank(), options).get(),
        gpu);
    const at::Tensor x = torch::full({1 << 20}, process->rank() + 1, gpu).to(torch::kFloat);
    ranks.all_reduce(x).get();
    EXPECT_EQ(x.mean().item<float>(), 3);
    process->say("ready");
    (void)process->next_line();  // one is killed meanwhile
    EXPECT_EQ(kind_of([&] { ranks.all_reduce(x).get(); }), ErrorKind::peer_lost);
  });
}

TEST(NcclTwoProcesses, OneOfTwoOnOneGpuIsKilled) {
  RankProcesses ranks("NcclTwoProcesses.DISABLED_Rank");
  if (!ranks.trouble().empty()) GTEST_SKIP() << ranks.trouble();
  ranks.tell(1, ranks.line(0));
  EXPECT_EQ(ranks.line(0), "ready");
  EXPECT_EQ(ranks.line(1), "ready");
  ranks.kill(1);
  ranks.tell(0, "go on");
  EXPECT_EQ(ranks.line(0), "passed");
}

}  // namespace communicator_gpu_test
}  // namespace weft::collectives::nccl::testing
