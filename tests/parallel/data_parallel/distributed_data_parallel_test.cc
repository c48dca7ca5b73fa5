#include <weft/parallel/data_parallel/distributed_data_parallel.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::distributed_data_parallel_test {
namespace {

using namespace testing;

// Small bucket sizes, for several buckets.
Options small(Overlap overlap = Overlap::group) { return {.bucket_bytes = {200, 400}, .overlap = overlap}; }

struct Setup {
  int ranks;
  Backend backend;
  Overlap overlap;
};
std::string name_of(const ::testing::TestParamInfo<Setup>& info) {
  std::ostringstream name;
  name << info.param.backend << info.param.ranks << "_" << static_cast<int>(info.param.overlap);
  return name.str();
}

class Training : public ::testing::TestWithParam<Setup> {
 protected:
  const int ranks = GetParam().ranks;
  Company company{ranks, GetParam().backend};
  std::vector<Group> groups = company.groups();
};

std::vector<Setup> setups() {
  std::vector<Setup> all;
  for (const int ranks : {1, 2, 3, 4}) all.push_back({ranks, Backend::memory, Overlap::group});
  for (const Overlap overlap : {Overlap::caller, Overlap::after, Overlap::automatic})
    for (const Backend backend : {Backend::memory, Backend::messages}) all.push_back({2, backend, overlap});
  all.push_back({4, Backend::hosts, Overlap::group});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Setups, Training, ::testing::ValuesIn(setups()), name_of);

void train(Net& net, const std::function<at::Tensor(const at::Tensor&)>& forward, int rank, int ranks,
           int total, int steps, bool set_to_none) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    const Batch batch = Batch::of_step(step, total).part(rank, ranks);
    optimizer.zero_grad(set_to_none);
    torch::mse_loss(forward(batch.data), batch.target).backward();
    optimizer.step();
  }
}

TEST_P(Training, EqualsOneProcessWithTheWholeBatch) {
  for (const bool set_to_none : {true, false}) {
    Net alone;
    train(alone, [&](const at::Tensor& x) { return alone.forward(x); }, 0, 1, ranks, 14, set_to_none);
    on_ranks(groups, [&](const Group& group) {
      // The ranks start with different weights: those of rank 0 count.
      auto net = std::make_shared<Net>(group.rank() + 1);
      DistributedDataParallel ddp{group, net, small(GetParam().overlap)};
      train(
          *net, [&](const at::Tensor& x) { return ddp.forward(x); }, group.rank(), ranks, ranks, 14,
          set_to_none);
      expect_close(values_of(*net), values_of(alone));
      EXPECT_GT(ddp.plan().size(), 1U);
      const auto ways = group.all_gather_object(static_cast<int>(ddp.overlap())).get();
      EXPECT_EQ(std::count(ways.begin(), ways.end(), ways[0]), ranks);  // the same on all ranks
    });
  }
}

}  // namespace
}  // namespace weft::data_parallel::distributed_data_parallel_test
