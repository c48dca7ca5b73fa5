#include "tests/parallel/collectives/conformance.h"

namespace weft::collectives::testing {

TEST_P(Conformance, EveryOperationFromEveryRootInEverySize) {
  std::vector<oracle::Step> steps;
  for (const std::int64_t n : {1, 100, 20'000})
    for (int root = 0; root < ranks; ++root)
      for (std::size_t operation = 0; operation < oracle::oracles; ++operation) {
        oracle::Step& step = steps.emplace_back();
        step.operation = operation;
        step.n = n;
        step.seed = root;
        step.in_flight = operation % 3;
        step.place = [this](int rank, const at::Tensor& values) { return place(rank, values); };
      }
  std::atomic<bool> over{false};
  std::thread runs([&] {
    oracle::run_steps({groups}, steps);
    over = true;
  });
  deployment->work_until([&] { return over.load(); });
  runs.join();
}

TEST_P(Conformance, TheOwnPartOfARankMayBeInPlace) {
  Tensors gathered, scattered;
  for (int rank = 0; rank < ranks; ++rank) {
    gathered.push_back(place(rank, at::full({ranks, 5}, rank)));
    scattered.push_back(place(rank, values(rank, {ranks, 5})));
  }
  all([&](const Group& group, int rank) { return group.all_gather(gathered[rank], gathered[rank][rank]); });
  all([&](const Group& group, int rank) {
    return group.reduce_scatter(scattered[rank][rank], scattered[rank]);
  });
  const at::Tensor sum = sum_of(ranks, {ranks, 5});
  for (int rank = 0; rank < ranks; ++rank) {
    expect_equal(gathered[rank].cpu(), at::arange(ranks).to(at::kFloat).view({ranks, 1}).expand({ranks, 5}));
    expect_equal(scattered[rank].cpu()[rank], sum[rank]);
  }
}

// All ranks make the same wrong call, and each refuses it. collective_call_test.cc has all refusals.
TEST_P(Conformance, WrongArgumentsFailTheCallAndTheGroupContinues) {
  const auto refused = [&](const auto& begin_at, const std::string& words) {
    expect_all(begin(begin_at), ErrorKind::invalid_argument, {words});
  };
  const Tensors ones = of_ranks(ranks, [&](int rank) { return zeros(rank, {2 * ranks}); });
  using G = const Group&;
  refused([](G group, int) { return group.all_reduce(at::Tensor()); }, "all_reduce: an undefined tensor");
  refused([&](G group, int rank) { return group.broadcast(ones[rank], ranks); },
          "broadcast: root " + std::to_string(ranks) + " of a group");
  refused([&](G group, int rank) { return group.all_gather(ones[rank], ones[rank].narrow(0, 1, 2)); },
          "all_gather: input and output overlap");
  refused([&](G group, int rank) { return group.all_to_all_v({ones[rank]}, {ones[rank]}); },
          "all_to_all_v: 1 tensors");
  refused([&](G group, int rank) { return group.gather({ones[rank]}, ones[rank], (rank + 1) % ranks); },
          "only the root");
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return place(rank, values(rank, {4})); });
  all([&](G member, int rank) { return member.all_reduce(tensors[rank]); });
  for (const at::Tensor& tensor : tensors) expect_equal(tensor.cpu(), sum_of(ranks, {4}));
}

// Every collective is compared, so that the other ranks do not wait for the rank that refuses its call.
TEST_P(Conformance, TheRefusalOfOneRankReachesAllRanks) {
  Tensors wholes, parts;
  for (int rank = 0; rank < ranks; ++rank) {
    wholes.push_back(zeros(rank, {2 * ranks}));
    parts.push_back(rank == 1 ? wholes.back().narrow(0, 1, 2) : zeros(rank, {2}));
  }
  expect_all(begin([&](const Group& group, int rank) { return group.all_gather(wholes[rank], parts[rank]); }),
             ErrorKind::invalid_argument, {"all_gather: input and output overlap"});
}

TEST_P(Conformance, ADifferenceNamesTheCollectiveOfEachRank) {
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return zeros(rank, {rank == 1 ? 3 : 2}); });
  expect_all(begin([&](const Group& group, int rank) { return group.all_reduce(tensors[rank]); }),
             ErrorKind::invalid_argument,
             {"float32[2]", "rank 1 (worker1)", "float32[3]", "conformance_test.cc"});
}

TEST_P(Conformance, AMissingRankIsNamedAtTheDeadline) {
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return zeros(rank, {2}); });
  expect_all(begin([&](const Group& group,
                       int rank) { return group.all_reduce(tensors[rank], ReduceOp::sum, 300ms); },
                   1),
             ErrorKind::deadline_exceeded, {"rank 0 (worker0)"});
}

TEST_P(Conformance, AnAbortFailsEveryCallWithItsReason) {
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return zeros(rank, {2}); });
  Futures futures;
  for (int rank = 1; rank < ranks; ++rank) futures.push_back(groups[rank].all_reduce(tensors[rank]));
  groups[0].abort("enough");
  deployment->work_until([&] {
    return std::all_of(futures.begin(), futures.end(), [](const auto& future) { return future.ready(); });
  });
  expect_all(std::move(futures), ErrorKind::aborted, {"enough"});
  expect_all(begin([&](const Group& group, int rank) { return group.all_reduce(tensors[rank]); }),
             ErrorKind::aborted, {"enough"});
}

}  // namespace weft::collectives::testing
