// Groups over NCCL itself. Skipped where LibTorch's CUDA libraries, NCCL or enough GPUs are missing.
#include <thread>

#include "tests/parallel/collectives/company.h"
#include "tests/parallel/collectives/nccl/gpus.h"

namespace weft::collectives::testing {
namespace group_devices_gpu_test {

// Members in this process, each on a separate GPU.
class GroupsOnGpus : public ::testing::Test {
 protected:
  static c10::Device gpu(int rank) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(rank)}; }
  void make(int ranks) {
    std::string why = "too few GPUs";
    const int found = nccl::testing::gpus(why);
    const auto api = found >= ranks ? nccl::testing::library(why) : nullptr;
    if (api == nullptr) GTEST_SKIP() << why;
    const auto devices = [api](int) {
      nccl::DevicesOptions options;
      options.load = [api] { return api; };
      return options;
    };
    company.emplace(ranks, Backend::memory, std::make_unique<test::InProcessJobStore>(), devices);
    groups = company->groups({.timeout = 60s});
    Futures prepared;
    for (const Group& group : groups) prepared.push_back(group.prepare(gpu(group.rank())));
    for (auto& future : prepared) got(std::move(future));
  }
  // A thread each: the first launch waits until NCCL has connected all.
  template <class F>
  void all(F begin) {
    std::vector<std::thread> threads;
    std::vector<std::exception_ptr> errors(groups.size());
    for (const Group& group : groups)
      threads.emplace_back(
          [&, group] { errors[group.rank()] = rpc::capture([&] { begin(group).get(); }).error(); });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error != nullptr) std::rethrow_exception(error);
  }
  at::Tensor tensor(int rank, at::IntArrayRef shape) { return values(rank, shape).to(gpu(rank)); }

  std::optional<Company> company;
  std::vector<Group> groups;

  void reduce_gather_and_compare(int ranks) {
    make(ranks);
    if (IsSkipped()) return;
    Tensors reduced, gathered;
    for (int rank = 0; rank < ranks; ++rank) {
      reduced.push_back(tensor(rank, {1000}));
      gathered.push_back(at::zeros({ranks, 10}, at::device(gpu(rank))));
    }
    all([&](const Group& group) { return group.all_reduce(reduced[group.rank()]); });
    all([&](const Group& group) {
      return group.all_gather(gathered[group.rank()], tensor(group.rank(), {10}));
    });
    for (int rank = 0; rank < ranks; ++rank) {
      expect_equal(reduced[rank].cpu(), sum_of(ranks, {1000}));
      for (int other = 0; other < ranks; ++other)
        expect_equal(gathered[rank][other].cpu(), values(other, {10}));
    }
  }
};

TEST_F(GroupsOnGpus, OfOneMember) { reduce_gather_and_compare(1); }

TEST_F(GroupsOnGpus, OfTwoMembers) { reduce_gather_and_compare(2); }

TEST_F(GroupsOnGpus, ADifferenceIsReportedToAll) {
  make(2);
  if (IsSkipped()) return;
  std::vector<std::optional<ErrorKind>> kinds(2);
  all([&](const Group& group) {
    const at::Tensor x = tensor(group.rank(), {group.rank() + 4});
    kinds[group.rank()] = test::kind_of([&] { got(group.all_reduce(x)); });
    return rpc::Future<void>::made(rpc::Result<void>{});
  });
  for (const auto& kind : kinds) EXPECT_EQ(kind, ErrorKind::invalid_argument);
}

}  // namespace group_devices_gpu_test
}  // namespace weft::collectives::testing
