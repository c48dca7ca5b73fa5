// Groups of two ranks on one GPU over NCCL, in a process each. Skipped where LibTorch's CUDA libraries, NCCL
// or a GPU are missing.
#include <c10/core/StreamGuard.h>
#include <torch/torch.h>

#include "tests/parallel/collectives/nccl/rank_processes.h"
#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {
namespace two_ranks_gpu_test {

const c10::Device gpu(c10::kCUDA, 0);

at::Tensor on_gpu(const at::Tensor& tensor) { return tensor.to(gpu); }

void every_operation(const Group& group, const RankProcess&) {
  group.prepare(gpu).get();
  oracle::Step step{.n = 600, .seed = 1};
  step.place = [](int, const at::Tensor& values) { return on_gpu(values); };
  for (const oracle::OracleOperation& operation : oracle::oracle_operations) {
    Begun begun = operation.begin(group, step);
    got(std::move(begun.done));
    EXPECT_TRUE(begun.right()) << operation.name;
  }
  const int rank = group.rank();
  at::Tensor x = on_gpu(values(rank, {2, 300}));
  group.all_reduce(x, ReduceOp::avg).get();
  expect_equal(x.cpu(), sum_of(2, {2, 300}) / 2, "average");
  x = at::zeros({2, 300}, at::device(gpu));
  (rank == 0 ? group.send(on_gpu(values(0, {2, 300})), 1) : group.recv(x, 0)).get();
  if (rank == 1) expect_equal(x.cpu(), values(0, {2, 300}), "send");
}

// Uses several groups at the same time, in the same order on both ranks, on several streams.
void groups_side_by_side(const Group& group, const RankProcess&) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  auto begin = rpc::Clock::now();
  const Group left = *group.split(0).get(), right = *group.split(0).get();
  Futures prepared;
  for (const Group& each : {left, right}) prepared.push_back(each.prepare(gpu));
  for (auto& one : prepared) one.get();
  note("two groups made", begin);
  begin = rpc::Clock::now();
  const c10::Stream a = cuda.getStreamFromGlobalPool(gpu), b = cuda.getStreamFromGlobalPool(gpu);
  Tensors on_left, on_right;
  Futures done;
  for (int i = 0; i < 50; ++i) {
    {
      const c10::StreamGuard on(a);
      on_left.push_back(on_gpu(values(group.rank(), {1 << 16})));
      done.push_back(left.all_reduce(on_left.back()));
    }
    const c10::StreamGuard on(b);
    on_right.push_back(on_gpu(values(group.rank() + 2, {1 << 16})));
    done.push_back(right.all_reduce(on_right.back()));
  }
  note("100 all-reduces launched", begin);
  for (auto& one : done) one.get();
  note("100 all-reduces done", begin);
  for (int i = 0; i < 50; ++i) {
    expect_equal(on_left[std::size_t(i)].cpu(), sum_of(2, {1 << 16}));
    expect_equal(on_right[std::size_t(i)].cpu(), values(2, {1 << 16}) + values(3, {1 << 16}));
  }
}

// Launches of names that the ranks call in opposite orders.
void launches_in_opposite_orders(const Group& group, const RankProcess&) {
  group.prepare(gpu).get();
  Tensors tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(on_gpu(values(group.rank() + i, {1000})));
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  cuda.synchronizeDevice(0);
  Futures done;
  for (int k = 0; k < 20; ++k) {
    const int i = group.rank() == 0 ? k : 19 - k;
    done.push_back(group.launch("tensor " + std::to_string(i),
                                [&, i] { return group.all_reduce(tensors[std::size_t(i)]); }));
  }
  for (auto& one : done) one.get();
  for (int i = 0; i < 20; ++i)
    expect_equal(tensors[std::size_t(i)].cpu(), values(i, {1000}) + values(i + 1, {1000}));
}

void a_difference_is_told_to_both(const Group& group, const RankProcess&) {
  group.prepare(gpu).get();
  const auto begin = rpc::Clock::now();
  const at::Tensor x = on_gpu(values(0, {group.rank() + 4}));
  EXPECT_EQ(test::kind_of([&] { got(group.all_reduce(x)); }), ErrorKind::invalid_argument);
  note("a difference", begin);
  x.add_(1).cpu();  // the device still works
}

void a_rank_that_does_not_come(const Group& group, const RankProcess& process) {
  group.prepare(gpu).get();
  const at::Tensor x = on_gpu(values(0, {1000}));
  if (group.rank() == 1) {
    EXPECT_EQ(process.next_line(), "the other has given up");
    EXPECT_EQ(test::kind_of([&] { got(group.all_reduce(x)); }), ErrorKind::deadline_exceeded);
    return;
  }
  const auto begin = rpc::Clock::now();
  const auto error = error_of([&] { got(group.all_reduce(x, ReduceOp::sum, 2s)); });
  ASSERT_TRUE(error);
  note("a deadline of 2 s", begin, error->what());
  EXPECT_EQ(error->kind(), ErrorKind::deadline_exceeded);
  EXPECT_NE(std::string(error->what()).find("worker1"), std::string::npos) << error->what();
  x.add_(1).cpu();
  process.say("gave up");
}

// One rank is killed while the other one waits for it in a kernel.
void a_rank_that_is_killed(const Group& group, const RankProcess& process) {
  group.prepare(gpu).get();
  at::Tensor x = on_gpu(values(group.rank(), {1 << 20}));
  group.all_reduce(x).get();
  process.say("ready");
  if (group.rank() == 1) {
    (void)process.next_line();  // is killed
    return;
  }
  auto late = group.all_reduce(x);
  (void)process.next_line();
  const auto begin = rpc::Clock::now();
  const auto error = error_of([&] { got(std::move(late)); });
  ASSERT_TRUE(error);
  note("a killed rank", begin, error->what());
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost);
  EXPECT_TRUE(error_of([&] { got(group.all_reduce(x)); }));
  x.zero_();
  EXPECT_EQ(x.sum().item<float>(), 0);  // the device works
}

struct Scenario {
  const char* name;
  void (*run)(const Group&, const RankProcess&);
  // Runs in the test's process while the ranks run.
  std::function<void(RankProcesses&)> meanwhile = [](RankProcesses&) {};
  bool one_remains = false;
};
const std::vector<Scenario> scenarios{{"EveryOperation", &every_operation},
                                      {"GroupsSideBySide", &groups_side_by_side},
                                      {"LaunchesInOppositeOrders", &launches_in_opposite_orders},
                                      {"ADifferenceIsToldToBoth", &a_difference_is_told_to_both},
                                      {"ARankThatDoesNotCome", &a_rank_that_does_not_come,
                                       [](RankProcesses& ranks) {
                                         EXPECT_EQ(ranks.line(0), "gave up");
                                         ranks.tell(1, "the other has given up");
                                       }},
                                      {"ARankThatIsKilled", &a_rank_that_is_killed,
                                       [](RankProcesses& ranks) {
                                         EXPECT_EQ(ranks.line(0), "ready");
                                         EXPECT_EQ(ranks.line(1), "ready");
                                         ranks.kill(1);
                                         ranks.tell(0, "go on");
                                       },
                                       true}};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

class TwoRanks : public ::testing::TestWithParam<Scenario> {};
INSTANTIATE_TEST_SUITE_P(Gpu, TwoRanks, ::testing::ValuesIn(scenarios),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(TwoRanks, DISABLED_Rank) {
  const auto process = RankProcess::here();
  if (!process) GTEST_SKIP() << "started by OnOneGpu alone";
  process->run_in_group({.timeout = 30s}, tensor::layers(),
                        [&](const Group& group, rpc::Agent&) { GetParam().run(group, *process); });
}

TEST_P(TwoRanks, OnOneGpu) {
  RankProcesses ranks(std::string("Gpu/TwoRanks.DISABLED_Rank/") + GetParam().name);
  if (!ranks.trouble().empty()) GTEST_SKIP() << ranks.trouble();
  GetParam().meanwhile(ranks);
  EXPECT_EQ(ranks.line(0), "passed");
  if (GetParam().one_remains) return;
  EXPECT_EQ(ranks.line(1), "passed");
}

}  // namespace two_ranks_gpu_test
}  // namespace weft::collectives::testing
