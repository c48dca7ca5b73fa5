#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>

#include <weft/rpc/trace/chrome_trace.h>
#include <weft/rpc/trace/tracer.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::negotiated_reduction_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using collectives::ReduceOp;
using collectives::testing::expect_all;
using collectives::testing::Futures;
using Reductions = std::vector<std::shared_ptr<NegotiatedReduction>>;

// The reductions of all ranks, in this process.
struct Ranks {
  explicit Ranks(int ranks, const NegotiationOptions& options = {}, Backend backend = Backend::memory,
                 const std::function<void(rpc::AgentOptions&)>& adjust = nullptr,
                 const std::function<rpc::Layers(int)>& layers = nullptr)
      : company(ranks, backend, std::make_unique<test::InProcessJobStore>(), nullptr, adjust, layers),
        groups(company.groups()),
        reductions(groups.size()) {
    on_ranks(groups, [&](const Group& group) {
      reductions[static_cast<std::size_t>(group.rank())] =
          NegotiatedReduction::make(company.agent(group.rank()), group, options);
    });
  }
  NegotiatedReduction& operator[](std::size_t rank) { return *reductions[rank]; }
  // Runs f(reduction, rank) for each rank.
  template <class F>
  void on_all(F f) {
    on_ranks(groups, [&](const Group& group) {
      f(*reductions[static_cast<std::size_t>(group.rank())], group.rank());
    });
  }
  // Calls all_reduce on these ranks.
  Futures all_reduce(const std::vector<std::size_t>& of, const std::string& name, const at::Tensor& like) {
    Futures futures;
    for (const std::size_t rank : of) futures.push_back(reductions[rank]->all_reduce(name, like.clone()));
    return futures;
  }

  Company company;
  std::vector<Group> groups;
  Reductions reductions;
};

void expect_done(Futures futures) {
  for (auto& future : futures) test::got(std::move(future));
}

at::Tensor value(int rank, int index) {
  return at::full({3, index % 4 + 1}, 1.0 + rank + 10.0 * index, at::kDouble);
}

class NegotiatedOrder : public ::testing::TestWithParam<std::pair<int, Backend>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NegotiatedOrder,
                         ::testing::Values(std::pair{1, Backend::memory}, std::pair{2, Backend::messages},
                                           std::pair{3, Backend::memory}, std::pair{4, Backend::memory},
                                           std::pair{4, Backend::hosts}));

TEST_P(NegotiatedOrder, MayDifferOnEachRank) {
  const auto [count, backend] = GetParam();
  Ranks ranks(count, {}, backend);
  constexpr int names = 20;
  ranks.on_all([&, count = count](NegotiatedReduction& reduction, int rank) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      std::mt19937 random(100 * seed + static_cast<unsigned>(rank));
      std::vector<int> order(names);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<at::Tensor> tensors(names);
      Futures futures;
      for (const int index : order) {
        tensors[static_cast<std::size_t>(index)] = value(rank, index);
        futures.push_back(reduction.all_reduce("t" + std::to_string(index),
                                               tensors[static_cast<std::size_t>(index)],
                                               {.op = index % 2 == 0 ? ReduceOp::sum : ReduceOp::max}));
      }
      expect_done(std::move(futures));
      for (int index = 0; index < names; ++index) {
        at::Tensor expected = value(count - 1, index);
        if (index % 2 == 0)
          for (int rank = 0; rank + 1 < count; ++rank) expected += value(rank, index);
        EXPECT_TRUE(at::equal(tensors[static_cast<std::size_t>(index)], expected)) << index;
      }
    }
    EXPECT_EQ(reduction.counts().names, 10U * names);
  });
}

// In the middle of its requests rank 1 waits for one that rank 0 makes last.
TEST(NegotiatedReduction, ARankMayWaitBeforeItsNextRequest) {
  Ranks ranks(2, {.fusion = {.bytes = 0, .cycle = 0ns}});
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    at::Tensor a = at::ones({2}), b = at::ones({2});
    if (rank == 0) {
      auto first = reduction.all_reduce("a", a);
      reduction.all_reduce("b", b).get();
      first.get();
    } else {
      reduction.all_reduce("b", b).get();
      reduction.all_reduce("a", a).get();
    }
  });
}

TEST(NegotiatedReduction, FusedResultsEqualThoseOfSingleLaunches) {
  std::vector<std::vector<at::Tensor>> results;
  std::vector<std::size_t> launches;
  // A long cycle, and requests of rank 0 that arrive together: no request is planned before all are ready.
  constexpr std::uint64_t bytes = 4 * 7 * 5;
  for (const FusionSettings& fusion :
       {FusionSettings{bytes, std::chrono::hours{1}}, FusionSettings{0, std::chrono::nanoseconds{0}}}) {
    Ranks ranks(3, {.fusion = fusion});
    std::vector<at::Tensor> own;
    std::mutex mutex;
    test::Event requested;
    ranks.company.agent(0).core()->loops().front()->post([&] { requested.wait(); });
    ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank));
      std::vector<at::Tensor> tensors;
      Futures futures;
      for (int i = 0; i < 7; ++i) tensors.push_back(at::randn({5}, generator, at::kFloat));
      for (std::size_t i = 0; i < 7; ++i)
        futures.push_back(reduction.all_reduce("t" + std::to_string(i), tensors[i]));
      if (rank == 0) requested.set();
      expect_done(std::move(futures));
      std::lock_guard lock(mutex);
      if (rank == 1) own = tensors;
    });
    results.push_back(own);
    launches.push_back(ranks[1].counts().launches);
  }
  EXPECT_EQ(launches, (std::vector<std::size_t>{1, 7}));
  expect_close(results[0], results[1], 0);
}

// Uses shared memory, and also a tensor that is not contiguous.
TEST(NegotiatedReduction, ReducesTensorsOfAllSizes) {
  Ranks ranks(2);
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    std::vector<at::Tensor> tensors;
    Futures futures;
    for (const std::int64_t size : {0, 1, 5, 20000, 70000})
      tensors.push_back(at::full({size}, rank + size, at::kFloat));
    tensors.push_back(at::full({30, 20}, rank, at::kFloat).t());
    tensors.push_back(at::full({}, rank, at::kFloat));
    for (std::size_t i = 0; i < tensors.size(); ++i)
      futures.push_back(reduction.all_reduce("t" + std::to_string(i), tensors[i]));
    expect_done(std::move(futures));
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_TRUE(at::equal(tensors[i], at::full_like(tensors[i], tensors[i].numel() + 0.5))) << i;
    EXPECT_TRUE(at::equal(tensors[5], at::full({20, 30}, 0.5F)));
    EXPECT_EQ(tensors[6].item<float>(), 0.5F);
  });
}

TEST(NegotiatedReduction, TensorsOfOneNameAreReducedTogether) {
  Ranks ranks(2, {.fusion = {.bytes = 0, .cycle = 0ns}});
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    std::vector<at::Tensor> tensors{at::full({2}, rank), at::full({2, 2}, 2 * rank)};
    reduction.all_reduce("group", tensors, {.op = ReduceOp::sum}).get();
    EXPECT_EQ(reduction.counts().launches, 1U);
    EXPECT_TRUE(at::equal(tensors[0], at::full({2}, 1)));
    EXPECT_TRUE(at::equal(tensors[1], at::full({2, 2}, 2)));
  });
}

TEST(NegotiatedReduction, AppliesFactors) {
  Ranks ranks(2);
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    at::Tensor tensor = at::full({3}, 2.0 + rank, at::kDouble);
    reduction.all_reduce("t", tensor, {.op = ReduceOp::sum, .prescale = 0.5, .postscale = 10}).get();
    EXPECT_TRUE(at::equal(tensor, at::full({3}, 25.0, at::kDouble))) << tensor;
  });
}

// Like Horovod, weft computes in float64 and rounds toward zero. float32 cannot represent 3,000,000,001.
TEST(NegotiatedReduction, AppliesFactorsToIntegers) {
  Ranks ranks(2);
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    const at::Tensor before = at::tensor({7 + rank, -7, 3}, at::kLong);
    for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
      at::Tensor tensor = (dtype == at::kByte ? before.abs() : before).to(dtype, false, true);
      reduction.all_reduce("t", tensor, {.op = ReduceOp::sum, .prescale = 0.5}).get();
      EXPECT_EQ(tensor.to(at::kLong)[0].item<int>(), 3 + 4);
      EXPECT_EQ(std::abs(tensor.to(at::kLong)[1].item<int>()), 3 + 3);
      EXPECT_EQ(tensor.to(at::kLong)[2].item<int>(), 1 + 1);
      tensor = before.abs().to(dtype);
      reduction.all_reduce("t", tensor, {.op = ReduceOp::max, .postscale = 1.9}).get();
      EXPECT_TRUE(at::equal(tensor.to(at::kLong), at::tensor({15, 13, 5}, at::kLong))) << tensor;
    }
    const at::Tensor large = at::full({1}, 3'000'000'001, at::kLong);
    reduction.all_reduce("t", large, {.op = ReduceOp::max, .prescale = 1.5}).get();
    EXPECT_EQ(large.item<std::int64_t>(), 4'500'000'001);
  });
}

// --- Sparse tensors ---

// A sparse tensor of 6 rows with 2 values. One row occurs twice. On rank 2 it has no rows.
at::Tensor sparse_of(int rank, at::ScalarType dtype) {
  const at::Tensor rows =
      rank == 2 ? at::empty({1, 0}, at::kLong) : at::tensor({rank + 1, 4, rank + 1}, at::kLong).view({1, 3});
  const at::Tensor values = at::arange(2 * rows.size(1), dtype).view({-1, 2}) + (rank + 1);
  return at::sparse_coo_tensor(rows, values, {6, 2});
}

TEST(NegotiatedReduction, SparseTensorsHaveTheRowsOfAllRanks) {
  for (const int count : {1, 2, 3}) {
    Ranks ranks(count);
    ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kLong})
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
          at::Tensor sparse = sparse_of(rank, dtype), dense = sparse.to_dense();
          const ReductionCall call{.op = op, .prescale = 2, .postscale = 3};
          auto done = reduction.all_reduce("sparse", sparse, call);
          reduction.all_reduce("dense", dense, call).get();
          done.get();
          EXPECT_TRUE(sparse.is_coalesced());
          EXPECT_EQ(sparse._nnz(), std::min(count, 2) + 1);
          EXPECT_TRUE(at::allclose(sparse.to_dense(), dense)) << sparse << dense;
        }
    });
  }
}

// Many sparse and dense tensors, in another order on each rank.
TEST(NegotiatedReduction, SparseTensorsMayBeRequestedInAnyOrder) {
  Ranks ranks(3);
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    std::vector<int> order(12);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(static_cast<unsigned>(rank));
    std::shuffle(order.begin(), order.end(), random);
    std::vector<at::Tensor> tensors(12);
    Futures futures;
    for (const int i : order) {
      at::Tensor& tensor = tensors[static_cast<std::size_t>(i)];
      tensor = sparse_of(rank, at::kDouble).mul_(i);
      if (i % 3 == 0) tensor = tensor.to_dense();
      futures.push_back(reduction.all_reduce("t" + std::to_string(i), tensor, {.op = ReduceOp::sum}));
    }
    expect_done(std::move(futures));
    at::Tensor sum = at::zeros({6, 2}, at::kDouble);
    for (int rank = 0; rank < 3; ++rank) sum += sparse_of(rank, at::kDouble).to_dense();
    for (int i = 0; i < 12; ++i)
      EXPECT_TRUE(at::allclose(tensors[static_cast<std::size_t>(i)].to_dense(), sum * i)) << i;
  });
}

TEST(NegotiatedReduction, ASparseAndADenseTensorDiffer) {
  Ranks ranks(2);
  Futures futures;
  futures.push_back(ranks[0].all_reduce("w", sparse_of(0, at::kFloat)));
  futures.push_back(ranks[1].all_reduce("w", sparse_of(1, at::kFloat).to_dense()));
  expect_all(std::move(futures), ErrorKind::invalid_argument,
             {"rank 0 has Float[6, 2] (sparse dimensions: 1) on cpu", "rank 1 has Float[6, 2] on cpu"});
}

// --- Joins ---

// Rank r has r + 1 batches. Each batch has fused, single and sparse sums.
TEST(NegotiatedReduction, ARankThatHasJoinedContributesZeros) {
  constexpr int count = 3;
  Ranks ranks(count);
  for (int epoch = 0; epoch < 2; ++epoch)
    ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
      for (int batch = 0; batch <= rank; ++batch) {
        // The ranks from `batch` on have this batch.
        double sum = 0;
        at::Tensor rows = at::zeros({6, 2}, at::kDouble);
        for (int rank = batch; rank < count; ++rank) {
          sum += rank + 1;
          rows += sparse_of(rank, at::kDouble).to_dense();
        }
        std::vector<at::Tensor> tensors{
            at::full({3, 2}, rank + 1, at::kDouble), at::full({5}, rank + 1, at::kDouble),
            at::full({50000}, rank + 1, at::kFloat), at::full({}, rank + 1, at::kLong)};
        Futures futures;
        for (std::size_t i = 0; i < tensors.size(); ++i)
          futures.push_back(reduction.all_reduce("t" + std::to_string(i), tensors[i], {.op = ReduceOp::sum}));
        at::Tensor average = at::full({2}, rank + 1, at::kDouble), sparse = sparse_of(rank, at::kDouble);
        futures.push_back(reduction.all_reduce("average", average));
        futures.push_back(reduction.all_reduce("sparse", sparse, {.op = ReduceOp::sum}));
        std::vector<at::Tensor> together{at::full({2}, rank + 1), at::full({3}, rank + 1)};
        futures.push_back(reduction.all_reduce("together", together, {.op = ReduceOp::sum, .postscale = 2}));
        expect_done(std::move(futures));
        for (const at::Tensor& tensor : tensors)
          EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, sum))) << tensor.sizes() << batch;
        EXPECT_TRUE(at::allclose(average, at::full_like(average, sum / count)));
        EXPECT_TRUE(at::allclose(sparse.to_dense(), rows));
        for (const at::Tensor& tensor : together)
          EXPECT_TRUE(at::equal(tensor, at::full_like(tensor, 2 * sum)));
      }
      EXPECT_EQ(reduction.join().get(), count - 1);
    });
}

// Rank 1 joins with a request in flight.
TEST(NegotiatedReduction, AJoinFollowsEarlierRequests) {
  Ranks ranks(2, {.fusion = {.cycle = 0ns}});
  at::Tensor first = at::ones({2}), second = at::ones({2}), alone = at::ones({2});
  auto of_rank_1 = ranks[1].all_reduce("w", first, {.op = ReduceOp::sum});
  auto joined = ranks[1].join();
  test::got(ranks[0].all_reduce("alone", alone, {.op = ReduceOp::sum}));
  EXPECT_FALSE(of_rank_1.ready());
  test::got(ranks[0].all_reduce("w", second, {.op = ReduceOp::sum}));
  test::got(std::move(of_rank_1));
  EXPECT_TRUE(at::equal(alone, at::ones({2})));
  for (const at::Tensor& tensor : {first, second}) EXPECT_TRUE(at::equal(tensor, at::full({2}, 2.0F)));
  EXPECT_FALSE(joined.ready());
  EXPECT_EQ(test::got(ranks[0].join()), 0);
  EXPECT_EQ(test::got(std::move(joined)), 0);
}

TEST(NegotiatedReduction, AMaximumIsRefusedAfterAJoin) {
  Ranks ranks(2);
  auto joined = ranks[1].join();
  expect_error([&] { test::got(ranks[0].all_reduce("w", at::ones({2}), {.op = ReduceOp::max})); },
               ErrorKind::failed_precondition, {"'w'", "max", "rank 1 has joined", "expected sum or avg"});
  test::got(ranks[0].all_reduce("w", at::ones({2})));
  EXPECT_EQ(test::got(ranks[0].join()), 0);
  EXPECT_EQ(test::got(std::move(joined)), 0);
}

TEST(NegotiatedReduction, ASecondJoinIsRefusedAndAJoinFailsWithTheReduction) {
  Ranks ranks(3);
  auto joined = ranks[1].join();
  EXPECT_EQ(test::kind_of([&] { test::got(ranks[1].join()); }), ErrorKind::failed_precondition);
  expect_error([&] { test::got(ranks[1].all_reduce("w", at::ones({2}))); }, {"this rank has joined"});
  ranks.reductions[0].reset();
  expect_error([&] { test::got(std::move(joined)); }, ErrorKind::failed_precondition,
               {"rank 0 has destroyed"});
  EXPECT_EQ(test::kind_of([&] { test::got(ranks[2].join()); }), ErrorKind::failed_precondition);
  auto last = ranks[1].join();
  ranks.reductions[1].reset();
  EXPECT_EQ(test::kind_of([&] { test::got(std::move(last)); }), ErrorKind::failed_precondition);
}

TEST(NegotiatedReduction, AFailureEndsAJoin) {
  Ranks ranks(2);
  auto joined = ranks[1].join();
  ranks[0].abort("out of data");
  EXPECT_EQ(test::kind_of([&] { test::got(std::move(joined)); }), ErrorKind::aborted);
  EXPECT_EQ(test::kind_of([&] { test::got(ranks[1].join()); }), ErrorKind::aborted);
}

// --- Errors ---

TEST(NegotiatedReduction, ADifferenceIsReportedWithBothValuesAndRanksContinue) {
  Ranks ranks(3);
  const auto fails = [&](const std::function<at::Tensor(int)>& tensor,
                         const std::function<ReductionCall(int)>& call,
                         const std::vector<std::string>& words) {
    Futures futures;
    for (int rank = 0; rank < 3; ++rank)
      futures.push_back(ranks[static_cast<std::size_t>(rank)].all_reduce("w", tensor(rank), call(rank)));
    expect_all(std::move(futures), ErrorKind::invalid_argument, words);
  };
  const auto same = [](int) { return ReductionCall{}; };
  const auto ones = [](int) { return at::ones({4}); };
  fails([](int rank) { return at::ones({rank == 1 ? 5 : 4}); }, same,
        {"'w': rank 0 has Float[4] on cpu, avg, rank 1 has Float[5] on cpu, avg"});
  fails([](int rank) { return at::ones({4}, rank == 2 ? at::kDouble : at::kFloat); }, same,
        {"rank 0 has Float[4]", "rank 2 has Double[4]"});
  fails(ones, [](int rank) { return ReductionCall{.op = rank == 1 ? ReduceOp::sum : ReduceOp::avg}; },
        {"rank 0 has Float[4] on cpu, avg", "rank 1 has Float[4] on cpu, sum"});
  fails(ones, [](int rank) { return ReductionCall{.prescale = rank == 1 ? 2.0 : 1.0}; }, {"prescale 2"});
  expect_done(ranks.all_reduce({0, 1, 2}, "w", at::ones({4})));
}

TEST(NegotiatedReduction, ARefusalOfOneRankFailsItsNameOnAllRanksAndNoOther) {
  Ranks ranks(3);
  const auto fails = [&](const at::Tensor& refused, ErrorKind kind, const std::string& words) {
    Futures wrong, others, right;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      auto& futures = rank == 1 ? wrong : others;
      futures.push_back(ranks[rank].all_reduce("w", rank == 1 ? refused : at::ones({4})));
      right.push_back(ranks[rank].all_reduce("x", at::ones({4})));
    }
    expect_all(std::move(wrong), kind, {words});
    expect_all(std::move(others), ErrorKind::invalid_argument, {"rank 1 has refused it", "'w'", words});
    expect_done(std::move(right));
  };
  fails(at::ones({1}).expand({4}), ErrorKind::invalid_argument, "is expanded");
  fails(at::ones({4}).to(at::kMeta), ErrorKind::unsupported, "a tensor on meta");
  Futures all;  // each rank gets its own refusal
  for (std::size_t rank = 0; rank < 3; ++rank)
    all.push_back(ranks[rank].all_reduce("w", at::ones({1}).expand({4})));
  expect_all(std::move(all), ErrorKind::invalid_argument, {"is expanded"});
  expect_done(ranks.all_reduce({0, 1, 2}, "w", at::ones({4})));
}

TEST(NegotiatedReduction, IncreasesTheVersionsOfItsTensors) {
  Ranks ranks(2);
  ranks.on_all([&](NegotiatedReduction& reduction, int) {
    const at::Tensor x = at::ones({3}, at::TensorOptions().requires_grad(true)), y = x.exp(), z = x.exp();
    reduction.all_reduce("one", y).get();
    reduction.all_reduce("several", std::vector<at::Tensor>{z, x.detach().clone()}).get();
    EXPECT_THROW(y.sum().backward(), c10::Error);
    EXPECT_THROW(z.sum().backward(), c10::Error);
  });
}

TEST(NegotiatedReduction, AveragesOfIntegersDoNotOverflow) {
  Ranks ranks(2);
  ranks.on_all([&](NegotiatedReduction& reduction, int rank) {
    const at::Tensor dense = at::full({3}, 127, at::kChar);
    at::Tensor sparse = at::full({3}, 100 + rank, at::kShort).to_sparse();
    sparse._values().mul_(300);
    auto both = reduction.all_reduce("dense", dense);
    reduction.all_reduce("sparse", sparse).get();
    both.get();
    EXPECT_TRUE(at::equal(dense, at::full({3}, 127, at::kChar))) << dense;
    EXPECT_EQ(sparse.scalar_type(), at::kShort);
    EXPECT_TRUE(at::equal(sparse.to_dense(), at::full({3}, 30'150, at::kShort))) << sparse;
  });
}

TEST(NegotiatedReduction, ANameInFlightIsRefused) {
  Ranks ranks(2);
  at::Tensor zero = at::ones({2}), one = at::full({2}, 3.0F);
  auto first = ranks[0].all_reduce("w", zero, {.prescale = 2});
  expect_error([&] { test::got(ranks[0].all_reduce("w", zero, {.prescale = 2})); },
               ErrorKind::failed_precondition);
  test::got(ranks[1].all_reduce("w", one, {.prescale = 2}));
  test::got(std::move(first));
  EXPECT_TRUE(at::equal(zero, at::full({2}, 4.0F))) << zero;  // scaled once
}

TEST(NegotiatedReduction, RefusesArguments) {
  Ranks ranks(1);
  const auto kind = [&](const std::vector<at::Tensor>& tensors, const ReductionCall& call,
                        const std::string& name = "w") {
    return test::kind_of([&] { test::got(ranks[0].all_reduce(name, tensors, call)); });
  };
  EXPECT_EQ(kind({at::ones({2})}, {}, ""), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({}, {}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::Tensor()}, {}), ErrorKind::invalid_argument);
  const at::Tensor sparse = at::ones({2}).to_sparse();
  EXPECT_EQ(kind({sparse}, {.op = ReduceOp::max}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({sparse, sparse}, {}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::ones({2, 2}).to_sparse_csr()}, {}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::ones({2}), at::ones({2}, at::kDouble)}, {}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::ones({2}, at::kBool)}, {.op = ReduceOp::max, .prescale = 2}),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::ones({2})}, {.op = ReduceOp::premul_sum(2)}), ErrorKind::invalid_argument);
  EXPECT_EQ(kind({at::ones({2}).to(at::kMeta)}, {}), ErrorKind::unsupported);
  test::got(ranks[0].all_reduce("w", at::ones({2}, at::kLong)));
  for (const std::vector<c10::Device>& devices :
       {std::vector<c10::Device>{at::kCPU}, {at::kCUDA}, {{at::kCUDA, 0}, {at::kCUDA, 0}}})
    EXPECT_EQ(test::kind_of([&] {
                NegotiatedReduction::make(ranks.company.agent(0), ranks.groups[0], {.devices = devices});
              }),
              ErrorKind::invalid_argument);
}

// --- Stalls ---

TEST(NegotiatedReduction, AStallIsLoggedWithTheMissingRanks) {
  // The first warning may be logged before the request of rank 2. The warning is repeated.
  const auto warned = std::make_shared<test::Event>();
  Ranks ranks(4, {.stall_warning = 20ms}, Backend::memory, [&](rpc::AgentOptions& options) {
    options.log = [warned](const rpc::LogRecord& record) {
      if (record.level == rpc::LogLevel::warning && record.agent == "worker0" &&
          record.message.find("all_reduce of 'w' has waited for 0.02") != std::string_view::npos &&
          record.message.find(" s: ready on ranks 0, 2; missing ranks 1, 3") != std::string_view::npos)
        warned->set();
    };
  });
  Futures early = ranks.all_reduce({0, 2}, "w", at::ones({2}));
  warned->wait();
  expect_done(ranks.all_reduce({1, 3}, "w", at::ones({2})));
  expect_done(std::move(early));
}

TEST(NegotiatedReduction, AStallBeyondTheLimitFailsOnAllRanks) {
  Ranks ranks(3, {.stall_warning = 0s, .stall_limit = 20ms});
  expect_all(ranks.all_reduce({2}, "w", at::ones({2})), ErrorKind::deadline_exceeded,
             {"'w'", "ready on rank 2; missing ranks 0, 1"});
  // Ranks that did not wait fail as soon as the plan arrives; at the latest with their own stall.
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(test::kind_of([&] { test::got(ranks[rank].all_reduce("x", at::ones({2}))); }),
              ErrorKind::deadline_exceeded)
        << rank;
}

// --- Ends ---

TEST(NegotiatedReduction, ADeadRankFailsAllRequests) {
  for (const int dead : {0, 2}) {
    Ranks ranks(3);
    Futures futures;
    for (std::size_t rank = 0; rank < 3; ++rank)
      if (static_cast<int>(rank) != dead)
        for (const char* name : {"a", "b"}) futures.push_back(ranks[rank].all_reduce(name, at::ones({2})));
    ranks.company.end(dead);
    for (auto& future : futures) EXPECT_TRUE(error_of([&] { test::got(std::move(future)); }));
    EXPECT_TRUE(error_of([&] { test::got(ranks[1].all_reduce("c", at::ones({2}))); }));
  }
}

TEST(NegotiatedReduction, AbortFailsAllRequestsOnAllRanks) {
  Ranks ranks(3);
  Futures futures = ranks.all_reduce({0, 1}, "w", at::ones({2}));
  ranks[2].abort("out of data");
  expect_all(std::move(futures), ErrorKind::aborted, {"rank 2", "out of data"});
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(test::kind_of([&] { test::got(ranks[rank].all_reduce("x", at::ones({2}))); }),
              ErrorKind::aborted);
}

TEST(NegotiatedReduction, ADestroyedReductionCompletesItsRequestsAndFailsTheOthers) {
  for (const std::size_t gone : {0, 1}) {
    Ranks ranks(3);
    Futures futures, late;
    futures.push_back(ranks[gone].all_reduce("w", at::ones({2})));
    ranks.reductions[gone].reset();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      if (rank == gone) continue;
      futures.push_back(ranks[rank].all_reduce("w", at::ones({2})));
      late.push_back(ranks[rank].all_reduce("x", at::ones({2})));
    }
    expect_done(std::move(futures));
    expect_all(std::move(late), ErrorKind::failed_precondition,
               {"rank " + std::to_string(gone) + " has destroyed its NegotiatedReduction"});
  }
}

// No object keeps the groups of a reduction after its end.
TEST(NegotiatedReduction, ReleasesItsGroups) {
  Ranks ranks(3);
  const auto groups = [&](int rank) {
    return collectives::CollectivesLayer::of(*ranks.company.agent(rank).core())->groups();
  };
  EXPECT_EQ(groups(1), 3U);
  ranks.reductions.clear();
  for (int rank = 0; rank < 3; ++rank)
    test::eventually("only the program's group is left", [&] { return groups(rank) == 1; });
}

// --- Tuning and timeline ---

TEST(NegotiatedReduction, TunesFusionAndLogsATable) {
  const auto table = std::make_shared<test::Handover<std::string>>();
  Ranks ranks(2, {.tuning = FusionGrid{{1000, 0}, {0ns}, 1}, .tuning_window = 1ns}, Backend::memory,
              [&](rpc::AgentOptions& options) {
                options.log = [table](const rpc::LogRecord& record) {
                  if (record.message.find("fusion tuned") != std::string_view::npos)
                    table->give(std::string(record.message));
                };
              });
  ranks.on_all([&](NegotiatedReduction& reduction, int) {
    for (int step = 0; step < 20; ++step) reduction.all_reduce("w", at::ones({20})).get();
  });
  const std::string text = table->take();  // a log indents further lines
  EXPECT_NE(text.find("fusion_bytes,cycle_us,MB_per_s\n    1000,0,"), std::string::npos) << text;
  EXPECT_NE(text.find("\n    0,0,"), std::string::npos) << text;
  EXPECT_EQ(ranks[0].fusion(), ranks[1].fusion());
}

TEST(NegotiatedReduction, TracesTheStagesOfEachRequest) {
  const auto tracer = std::make_shared<rpc::Tracer>();
  Ranks ranks(2, {}, Backend::memory, nullptr, [&](int rank) {
    rpc::Layers layers = tensor::layers();
    if (rank == 1) layers.push_back(tracer->layer());
    return layers;
  });
  Futures futures;
  for (std::size_t rank = 0; rank < 2; ++rank)
    for (const char* name : {"a", "b"}) futures.push_back(ranks[rank].all_reduce(name, at::ones({2})));
  expect_done(std::move(futures));
  const auto batch = tracer->take();
  for (const std::string name : {"all_reduce a", "all_reduce b"}) {
    const auto root = std::find_if(batch.spans.begin(), batch.spans.end(),
                                   [&](const rpc::Span& span) { return span.name == name; });
    ASSERT_NE(root, batch.spans.end());
    std::vector<std::string> parts;
    std::int64_t at = root->begin;
    for (const rpc::Span& span : batch.spans) {
      if (span.parent != root->id) continue;
      parts.push_back(span.name);
      EXPECT_EQ(span.begin, at);  // stages follow each other without a gap
      at = span.end;
    }
    EXPECT_EQ(at, root->end);
    EXPECT_EQ(parts, (std::vector<std::string>{"NEGOTIATE", "FUSE", "ALLREDUCE"}));
  }
  const std::string json = rpc::chrome_trace({{.agent = "worker1", .spans = batch.spans}});
  EXPECT_NE(json.find("\"name\":\"NEGOTIATE\",\"cat\":\"work\""), std::string::npos);
}

}  // namespace
}  // namespace weft::data_parallel::negotiated_reduction_test
