// GroupOptions::checks: what groups with relaxed checks accept and groups with strict checks refuse, on every
// backend.
#include <numeric>

#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {
namespace group_checks_test {

class GroupChecks : public OfFew {
 protected:
  // Calls `begin` on all ranks of a group with strict checks, which refuse it, and then on all ranks of a
  // group with relaxed checks.
  template <class F>
  void refused_if_strict(F begin, const std::string& words) {
    Futures futures;
    for (const Group& group : groups) futures.push_back(begin(group));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {words});
    together(relaxed, begin);
  }
  std::vector<Group> relaxed = company.groups({.checks = Checks::relaxed});
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupChecks, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// The shape of 24 elements that a rank uses.
std::vector<std::int64_t> shape_of(int rank) {
  const std::vector<std::int64_t> shapes[] = {{24}, {4, 6}, {2, 3, 4}, {6, 4}};
  return shapes[rank % 4];
}

TEST_P(GroupChecks, RelaxedRunEveryOperationInEverySize) {
  std::vector<oracle::Step> steps;
  for (const std::int64_t n : {0, 1, 15, 70'001})
    for (std::size_t operation = 0; operation < oracle::oracles; ++operation)
      steps.push_back({.operation = operation, .n = n, .seed = 1});
  oracle::run_steps({relaxed}, steps);
}

TEST_P(GroupChecks, TensorsOfEqualNumbersOfElementsAgree) {
  Tensors reduced(ranks), sent(ranks), gathered(ranks), parts(ranks);
  const auto own = [](const Group& group) { return values(group.rank(), shape_of(group.rank())); };
  const auto flat_sum = sum_of(ranks, {24});
  using G = const Group&;
  refused_if_strict([&](G group) { return group.all_reduce(reduced[group.rank()] = own(group)); },
                    "float32[4, 6]");
  refused_if_strict([&](G group) { return group.broadcast(sent[group.rank()] = own(group), 1); },
                    "float32[4, 6]");
  refused_if_strict(
      [&](G group) { return group.all_gather(gathered[group.rank()] = at::zeros({ranks, 24}), own(group)); },
      "float32[4, 6]");
  refused_if_strict(
      [&](G group) {
        return group.scatter(parts[group.rank()] = at::zeros(shape_of(group.rank())),
                             group.rank() == 2 ? Tensors(ranks, own(group)) : Tensors{}, 2);
      },
      "float32[4, 6]");
  for (int rank = 0; rank < ranks; ++rank) {
    expect_equal(reduced[rank], flat_sum.view(shape_of(rank)), "all_reduce");
    expect_equal(sent[rank], values(1, shape_of(rank)), "broadcast");
    expect_equal(parts[rank], values(2, shape_of(rank)), "scatter");
    for (int other = 0; other < ranks; ++other)
      expect_equal(gathered[rank][other], values(other, {24}), "all_gather");
  }
}

TEST_P(GroupChecks, TensorsOfDifferentNumbersOfElementsOrDtypesDiffer) {
  const auto differ = [&](const auto& tensor_of, const std::string& words) {
    Futures futures;
    for (const Group& group : relaxed) futures.push_back(group.all_reduce(tensor_of(group.rank())));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {words, "rank 1 (worker1)"});
  };
  differ([](int rank) { return at::zeros({rank == 1 ? 5 : 6}); }, "float32[5]");
  differ([](int rank) { return at::zeros({2, 3}, rank == 1 ? at::kInt : at::kFloat); }, "int32[6]");
  together(relaxed, [](const Group& group) { return group.barrier(); });
}

TEST_P(GroupChecks, MessagesMayHaveOtherShapes) {
  at::Tensor received;
  const auto exchange = [&](const std::vector<Group>& of, const at::Tensor& tensor) {
    received = at::zeros({6});
    Futures futures;
    futures.push_back(of[0].send(tensor, 1));
    futures.push_back(of[1].recv(received, 0));
    return futures;
  };
  const auto fails = [&](const std::vector<Group>& of, const at::Tensor& tensor) {
    expect_all(exchange(of, tensor), ErrorKind::invalid_argument, {"rank 0 sent", "another type or size"});
  };
  fails(groups, values(0, {2, 3}));
  fails(relaxed, values(0, {5}));
  fails(relaxed, values(0, {6}, at::kInt));
  for (auto& future : exchange(relaxed, values(0, {2, 3}))) got(std::move(future));
  expect_equal(received, values(0, {6}));
  auto sent = relaxed[2].send(values(2, {3, 2}), 1);
  EXPECT_EQ(got(relaxed[1].recv_any(received)), 2);
  got(std::move(sent));
  expect_equal(received, values(2, {6}));
  // A message of unknown shape keeps its own.
  sent = relaxed[2].send(values(2, {3, 2}), 1);
  expect_equal(got(relaxed[1].recv_tensor(2)), values(2, {3, 2}));
  got(std::move(sent));
}

TEST_P(GroupChecks, OverlappingTensorsAreCopied) {
  using G = const Group&;
  for (const std::int64_t n : {3, 30'000}) {
    const std::int64_t all = ranks * n;
    Tensors wholes(ranks);
    const auto whole = [&](G group) { return wholes[group.rank()] = values(group.rank(), {all}); };
    const auto part = [&](const at::Tensor& tensor, int rank) { return tensor.narrow(0, rank * n, n); };
    const auto next = [&](G group) { return (group.rank() + 1) % ranks; };
    const auto parts = [&](const at::Tensor& tensor) { return tensor.split(n); };

    refused_if_strict(
        [&](G group) {
          const at::Tensor tensor = whole(group);
          return group.all_gather(tensor, part(tensor, next(group)));
        },
        "input and output overlap");
    for (const at::Tensor& tensor : wholes)
      for (int rank = 0; rank < ranks; ++rank)
        expect_equal(part(tensor, rank), part(values(rank, {all}), (rank + 1) % ranks), "all_gather");

    refused_if_strict(
        [&](G group) {
          const at::Tensor tensor = whole(group);
          return group.all_gather_v(parts(tensor), part(tensor, next(group)));
        },
        "input and output overlap");
    for (const at::Tensor& tensor : wholes)
      for (int rank = 0; rank < ranks; ++rank)
        expect_equal(part(tensor, rank), part(values(rank, {all}), (rank + 1) % ranks), "all_gather_v");

    const at::Tensor sum = sum_of(ranks, {all});
    refused_if_strict(
        [&](G group) {
          const at::Tensor tensor = whole(group);
          return group.reduce_scatter(part(tensor, next(group)), tensor);
        },
        "input and output overlap");
    for (int rank = 0; rank < ranks; ++rank)
      expect_equal(part(wholes[rank], (rank + 1) % ranks), part(sum, rank), "reduce_scatter");

    refused_if_strict(
        [&](G group) {
          const at::Tensor tensor = whole(group);
          return group.all_to_all(tensor, tensor);
        },
        "input and output overlap");
    for (int rank = 0; rank < ranks; ++rank)
      for (int other = 0; other < ranks; ++other)
        expect_equal(part(wholes[rank], other), part(values(other, {all}), rank), "all_to_all");

    refused_if_strict(
        [&](G group) {
          const at::Tensor tensor = whole(group);
          return group.all_to_all_v(parts(tensor), parts(tensor));
        },
        "input and output overlap");
    for (int rank = 0; rank < ranks; ++rank)
      for (int other = 0; other < ranks; ++other)
        expect_equal(part(wholes[rank], other), part(values(other, {all}), rank), "all_to_all_v");
  }
}

// Arguments that are data, as bindings have them, are refused on all ranks if one rank's are wrong.
TEST_P(GroupChecks, CollectivesAsDataAreCheckedAsAllOthers) {
  using G = const Group&;
  const at::Tensor two = at::zeros({2});
  const auto sum = [&](G group, const Tensors& outputs, const Tensors& inputs, std::optional<ReduceOp> op) {
    return group.collective(Operation::all_reduce, outputs, inputs, std::nullopt, op);
  };
  const auto refused = [&](const auto& wrong, const std::string& words) {
    Futures futures;
    for (G group : groups)
      futures.push_back(group.rank() == 1 ? wrong(group) : sum(group, {two.clone()}, {}, ReduceOp::sum));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {words});
  };
  refused([&](G group) { return sum(group, {two.clone()}, {}, std::nullopt); },
          "expected no root and a known");
  refused([&](G group) { return sum(group, {two.clone()}, {two}, ReduceOp::sum); },
          "1 tensors as inputs, expected none");
  refused([&](G group) { return group.collective(Operation::broadcast, {two.clone()}, {}, {}, {}); },
          "expected a root and no reduction");
  refused(
      [&](G group) {
        return group.collective(Operation::reduce, {two.clone(), two.clone()}, {}, 0, ReduceOp::sum);
      },
      "2 tensors as outputs, expected one");
  const auto parts = [&](G group, const std::vector<std::int64_t>& sizes) {
    return group.all_to_all_v(at::zeros({ranks}), {}, at::zeros({ranks}), sizes);
  };
  for (const auto& sizes : {std::vector<std::int64_t>{1}, std::vector<std::int64_t>(ranks, 2)}) {
    Futures futures;
    for (G group : groups)
      futures.push_back(parts(group, group.rank() == 1 ? sizes : std::vector<std::int64_t>{}));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {"splits of a first dimension"});
  }
  Tensors reduced(ranks);
  together(groups, [&](G group) {
    return sum(group, {reduced[group.rank()] = values(group.rank(), {5})}, {}, ReduceOp::sum);
  });
  expect_equal(reduced[0], sum_of(ranks, {5}));
}

TEST_P(GroupChecks, PartsOfOneTensorHaveSizes) {
  Tensors outputs(ranks);
  together(groups, [&](const Group& group) {
    // Rank r sends r + 1 rows to each rank.
    const std::int64_t rows = group.rank() + 1;
    std::vector<std::int64_t> received(ranks);
    std::iota(received.begin(), received.end(), std::int64_t{1});
    outputs[group.rank()] = at::zeros({ranks * (ranks + 1) / 2, 2});
    return group.all_to_all_v(outputs[group.rank()], received, values(group.rank(), {ranks * rows, 2}), {});
  });
  for (int rank = 0; rank < ranks; ++rank) {
    Tensors expected;
    for (int from = 0; from < ranks; ++from)
      expected.push_back(values(from, {ranks * (from + 1), 2}).narrow(0, rank * (from + 1), from + 1));
    expect_equal(outputs[rank], at::cat(expected));
  }
}

TEST_P(GroupChecks, ListsMayHaveSeveralDtypes) {
  const auto list_of = [](int rank, std::int64_t n) {
    return Tensors{values(rank, {n}), values(rank, {2, n}, at::kLong).t(), values(rank, {}),
                   values(rank, {0}, at::kHalf), at::zeros({n}, at::kBool).fill_(rank == 1)};
  };
  for (const std::int64_t n : {2, 20'000}) {
    std::vector<Tensors> reduced(ranks), sent(ranks), gathered(ranks), scattered(ranks);
    using G = const Group&;
    refused_if_strict(
        [&](G group) { return group.all_reduce(reduced[group.rank()] = list_of(group.rank(), n)); },
        "give tensors of one dtype");
    refused_if_strict(
        [&](G group) { return group.broadcast(sent[group.rank()] = list_of(group.rank(), n), 1); },
        "give tensors of one dtype");
    const auto pair_of = [&](std::int64_t rows, at::ScalarType first, at::ScalarType second) {
      return Tensors{at::zeros({rows, n}, first), at::zeros({rows, 2}, second)};
    };
    const auto filled = [&](int rank, std::int64_t rows) {
      return Tensors{values(rank, {rows, n}), values(rank, {rows, 2}, at::kDouble)};
    };
    refused_if_strict(
        [&](G group) {
          return group.all_gather(gathered[group.rank()] = pair_of(ranks, at::kFloat, at::kDouble),
                                  filled(group.rank(), 1));
        },
        "give tensors of one dtype");
    refused_if_strict(
        [&](G group) {
          return group.reduce_scatter(scattered[group.rank()] = pair_of(1, at::kFloat, at::kDouble),
                                      filled(group.rank(), ranks));
        },
        "give tensors of one dtype");
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < reduced[rank].size(); ++i) {
        at::Tensor sum = list_of(0, n)[i];
        for (int other = 1; other < ranks; ++other) sum = sum + list_of(other, n)[i];
        expect_equal(reduced[rank][i], sum, "all_reduce");
        expect_equal(sent[rank][i], list_of(1, n)[i], "broadcast");
      }
      for (std::size_t i = 0; i < 2; ++i) {
        at::Tensor sum = filled(0, ranks)[i];
        for (int other = 1; other < ranks; ++other) sum = sum + filled(other, ranks)[i];
        expect_equal(scattered[rank][i][0], sum[rank], "reduce_scatter");
        for (int other = 0; other < ranks; ++other)
          expect_equal(gathered[rank][i][other], filled(other, 1)[i][0], "all_gather");
      }
    }
  }
}

// Rank 1 runs another number of collectives than the other ranks.
TEST_P(GroupChecks, ListsOfDifferentDtypesEndTheGroup) {
  Futures futures;
  for (const Group& group : relaxed)
    futures.push_back(
        group.all_reduce(Tensors{at::zeros({2}), at::zeros({2}, group.rank() == 1 ? at::kFloat : at::kInt)}));
  for (auto& future : futures) EXPECT_TRUE(error_of([&] { got(std::move(future)); }));
  for (const Group& group : relaxed)
    test::expect_error(group.barrier(), ErrorKind::aborted, "several dtypes");
}

// LibTorch's lazy views and tensors with gaps, also as outputs.
TEST_P(GroupChecks, TensorsThatAreNotPlainKeepTheirValues) {
  const auto complex = [](int rank) { return at::complex(values(rank, {6}), values(rank, {6})); };
  for (const auto* const of : {&groups, &relaxed}) {
    Tensors conjugates = of_ranks(ranks, [&](int rank) { return complex(rank).conj(); });
    Tensors transposed = of_ranks(ranks, [&](int rank) { return values(rank, {4, 6}).t(); });
    Tensors strided = of_ranks(ranks, [&](int rank) { return values(rank, {6, 4}).slice(1, 0, 4, 2); });
    const Tensors expanded =
        of_ranks(ranks, [&](int rank) { return values(rank, {1, 2}).expand({ranks, 2}); });
    Tensors outputs = of_ranks(ranks, [&](int) { return at::zeros({2}); });
    together(*of, [&](const Group& group) { return group.all_reduce(conjugates[group.rank()]); });
    together(*of, [&](const Group& group) { return group.all_reduce(transposed[group.rank()]); });
    together(*of, [&](const Group& group) { return group.broadcast(strided[group.rank()], 1); });
    together(*of, [&](const Group& group) {
      return group.reduce_scatter(outputs[group.rank()], expanded[group.rank()]);
    });
    at::Tensor sum = complex(0);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + complex(rank);
    for (int rank = 0; rank < ranks; ++rank) {
      expect_equal(conjugates[rank].resolve_conj(), sum.conj().resolve_conj());
      expect_equal(transposed[rank], sum_of(ranks, {4, 6}).t());
      expect_equal(strided[rank], values(1, {6, 4}).slice(1, 0, 4, 2));
      expect_equal(outputs[rank], sum_of(ranks, {1, 2})[0]);
    }
    expect_all(
        [&] {
          Futures futures;
          for (const Group& group : *of) futures.push_back(group.all_reduce(at::zeros({1}).expand({3})));
          return futures;
        }(),
        ErrorKind::invalid_argument, {"expanded"});
  }
}

}  // namespace group_checks_test
}  // namespace weft::collectives::testing
