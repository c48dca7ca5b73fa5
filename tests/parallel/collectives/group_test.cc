// Groups of agents of one process: results against plain arithmetic, on every backend.
#include <weft/rpc/core/when_all.h>

#include <c10/core/InferenceMode.h>

#include <numeric>

#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {
namespace group_test {

class Groups : public ::testing::TestWithParam<std::tuple<int, Backend>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  Backend backend() const { return std::get<1>(GetParam()); }
  // Returns the tensor in group memory if the backend is `placed`.
  at::Tensor at_home(int rank, const at::Tensor& tensor) {
    return backend() == Backend::placed ? groups[rank].empty(tensor.sizes(), tensor.options()).copy_(tensor)
                                        : tensor;
  }
  Company company{ranks(), backend()};
  std::vector<Group> groups = company.groups();
};
std::string name_of(const ::testing::TestParamInfo<Groups::ParamType>& info) {
  return ::testing::PrintToString(std::get<1>(info.param)) + "Of" + std::to_string(std::get<0>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Ranks, Groups,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(Backend::messages, Backend::memory)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(RanksThatArePlaced, Groups,
                         ::testing::Combine(::testing::Values(2, 3, 5, 8),
                                            ::testing::Values(Backend::placed)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(RanksOnHosts, Groups,
                         ::testing::Combine(::testing::Values(3, 4, 5, 6, 8),
                                            ::testing::Values(Backend::hosts, Backend::uneven)),
                         name_of);

TEST_P(Groups, HaveRanksAndMembers) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const Group& group = groups[static_cast<std::size_t>(rank)];
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), ranks());
    EXPECT_EQ(group.members()[static_cast<std::size_t>(rank)], "worker" + std::to_string(rank));
    EXPECT_EQ(group.name(), "world");
    EXPECT_EQ(group.backend(), expected(backend(), ranks()));
  }
}

// Small sizes, for which the number of rounds matters, sizes of several chunks, and empty tensors.
TEST_P(Groups, EveryOperationInEverySize) {
  std::vector<oracle::Step> steps;
  for (const std::int64_t n : {0, 1, 15, 70'001, 1 << 18})
    for (const int root : {0, ranks() - 1})
      for (std::size_t operation = 0; operation < oracle::oracles; ++operation)
        steps.push_back(
            {.operation = operation, .n = n, .seed = root, .placed = backend() == Backend::placed});
  oracle::run_steps({groups}, steps);
}

// The other tensor is part `rank` of a whole tensor. reduce_scatter leaves the other parts unchanged.
TEST_P(Groups, InPlaceEqualsOutOfPlace) {
  for (const auto type : {at::kFloat, at::kHalf})
    for (const std::int64_t n : {0, 7, 70'001}) {
      Tensors gathered, reduced, inputs;
      for (int rank = 0; rank < ranks(); ++rank) {
        gathered.push_back(at_home(rank, at::full({ranks(), n}, 99, type)));
        gathered.back()[rank].copy_(values(rank, {n}, type));
        inputs.push_back(values(rank, {ranks(), n}, type));
        reduced.push_back(at_home(rank, inputs.back().clone()));
      }
      together(groups, [&](const Group& group) {
        return group.all_gather(gathered[group.rank()], gathered[group.rank()][group.rank()]);
      });
      together(groups, [&](const Group& group) {
        return group.reduce_scatter(reduced[group.rank()][group.rank()], reduced[group.rank()]);
      });
      Tensors apart(ranks());
      together(groups, [&](const Group& group) {
        return group.reduce_scatter(apart[group.rank()] = at::zeros({n}, type), inputs[group.rank()]);
      });
      for (int rank = 0; rank < ranks(); ++rank)
        for (int part = 0; part < ranks(); ++part) {
          expect_equal(gathered[rank][part], values(part, {n}, type), "gathered");
          expect_equal(reduced[rank][part], part == rank ? apart[rank] : inputs[rank][part], "reduced");
        }
    }
}

TEST_P(Groups, ABarrierCompletesOnceAllRanksHaveCalledIt) {
  Futures passed;
  for (int rank = 0; rank + 1 < ranks(); ++rank) passed.push_back(groups[rank].barrier());
  for (const auto& future : passed) EXPECT_FALSE(future.ready());
  got(groups.back().barrier());
  for (auto& future : passed) got(std::move(future));
}

// Ranks run ahead of each other, and collectives overlap.
TEST_P(Groups, SeveralCollectivesMayOverlap) {
  constexpr int rounds = 20;
  std::vector<Tensors> tensors(ranks());
  Futures all;
  for (int rank = 0; rank < ranks(); ++rank)
    for (int round = 0; round < rounds; ++round) {
      tensors[rank].push_back(values(rank + round, {round % 2 == 0 ? 10 : 40'000}));
      all.push_back(groups[rank].all_reduce(tensors[rank].back()));
    }
  for (auto& future : all) got(std::move(future));
  for (int rank = 0; rank < ranks(); ++rank)
    for (int round = 0; round < rounds; ++round) expect_equal(tensors[rank][round], tensors[0][round]);
  expect_equal(tensors[0][0], sum_of(ranks(), {10}));
}

// --- Tensors ---

class GroupTensors : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupTensors, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupTensors, EveryDtype) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                                    at::kShort, at::kChar, at::kByte, at::kComplexFloat}) {
    for (const std::int64_t n : {9, 30'000}) {
      const Tensors tensors = of_ranks(ranks, [&](int rank) { return values(rank, {n}, type); });
      together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
      for (const at::Tensor& tensor : tensors)
        expect_equal(tensor, sum_of(ranks, {n}, type), at::toString(type));
    }
  }
}

TEST_P(GroupTensors, EveryReduction) {
  Tensors given;
  for (int rank = 0; rank < ranks; ++rank) given.push_back(values(rank, {50}, at::kLong));
  const auto expect = [&](ReduceOp op, const at::Tensor& result) {
    Tensors tensors;
    for (const at::Tensor& tensor : given) tensors.push_back(tensor.clone());
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()], op); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, result, op.name().c_str());
  };
  const auto all = [&](auto f) { return std::accumulate(given.begin() + 1, given.end(), given.front(), f); };
  using T = const at::Tensor&;
  expect(ReduceOp::sum, all([](T a, T b) { return a + b; }));
  expect(ReduceOp::avg, all([](T a, T b) { return a + b; }).div(ranks, "trunc"));
  expect(ReduceOp::product, all([](T a, T b) { return a * b; }));
  expect(ReduceOp::min, given.front());
  expect(ReduceOp::max, given.back());
  expect(ReduceOp::bit_and, all([](T a, T b) { return a & b; }));
  expect(ReduceOp::bit_or, all([](T a, T b) { return a | b; }));
  expect(ReduceOp::bit_xor, all([](T a, T b) { return a ^ b; }));
  Tensors scaled;
  at::Tensor sum = at::zeros({50});
  for (int rank = 0; rank < ranks; ++rank) {
    scaled.push_back(values(rank, {50}));
    sum += (rank + 1) * scaled.back();
  }
  together(groups, [&](const Group& group) {
    return group.all_reduce(scaled[group.rank()], ReduceOp::premul_sum(group.rank() + 1));
  });
  for (const at::Tensor& tensor : scaled) expect_equal(tensor, sum);
}

TEST_P(GroupTensors, TensorsThatAreNotContiguous) {
  for (const std::int64_t n : {6, 300}) {
    Tensors wholes, tensors;
    for (int rank = 0; rank < ranks; ++rank) {
      wholes.push_back(values(rank, {n, n}));
      tensors.push_back(wholes.back().t().slice(0, 0, n, 2));
    }
    const at::Tensor result = sum_of(ranks, {n, n}).t().slice(0, 0, n, 2).clone();
    const at::Tensor beside = wholes[1].t().slice(0, 1, n, 2).clone();
    together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
    for (const at::Tensor& tensor : tensors) expect_equal(tensor, result);
    expect_equal(wholes[1].t().slice(0, 1, n, 2), beside, "what lies between stays as it was");
  }
  Tensors outputs(ranks);
  together(groups, [&](const Group& group) {
    const at::Tensor expanded = values(group.rank(), {1}).expand({4});
    return group.all_gather(outputs[group.rank()] = at::zeros({4, ranks}).t(), expanded);
  });
  for (int rank = 0; rank < ranks; ++rank) expect_equal(outputs[0][rank], values(rank, {1}).expand({4}));
}

// One collective has tensors of several shapes, one of which is not contiguous.
TEST_P(GroupTensors, SeveralTensorsMayBeInOneCollective) {
  for (const std::int64_t n : {3, 50'000}) {
    const auto tensors_of = [n](int rank) {
      return Tensors{values(rank, {n}), values(rank, {2, 4}).t(), values(rank, {0}), values(rank, {})};
    };
    std::vector<Tensors> reduced, sent;
    for (int rank = 0; rank < ranks; ++rank)
      reduced.push_back(tensors_of(rank)), sent.push_back(tensors_of(rank));
    together(groups, [&](const Group& group) { return group.all_reduce(reduced[group.rank()]); });
    together(groups, [&](const Group& group) { return group.broadcast(sent[group.rank()], 1); });
    for (int rank = 0; rank < ranks; ++rank)
      for (std::size_t i = 0; i < 4; ++i) {
        at::Tensor sum = tensors_of(0)[i];
        for (int other = 1; other < ranks; ++other) sum = sum + tensors_of(other)[i];
        expect_equal(reduced[rank][i], sum);
        expect_equal(sent[rank][i], tensors_of(1)[i]);
      }
    std::vector<Tensors> gathered(ranks), scattered(ranks);
    together(groups, [&](const Group& group) {
      gathered[group.rank()] = {at::zeros({ranks, n}), at::zeros({ranks, 2})};
      return group.all_gather(gathered[group.rank()], {values(group.rank(), {n}), values(group.rank(), {2})});
    });
    together(groups, [&](const Group& group) {
      scattered[group.rank()] = {at::zeros({n}), at::zeros({2})};
      return group.reduce_scatter(scattered[group.rank()],
                                  {values(group.rank(), {ranks, n}), values(group.rank(), {ranks, 2})});
    });
    for (int rank = 0; rank < ranks; ++rank)
      for (int other = 0; other < ranks; ++other) {
        expect_equal(gathered[rank][0][other], values(other, {n}));
        expect_equal(gathered[rank][1][other], values(other, {2}));
        expect_equal(scattered[other][0], sum_of(ranks, {ranks, n})[other]);
        expect_equal(scattered[other][1], sum_of(ranks, {ranks, 2})[other]);
      }
  }
}

TEST_P(GroupTensors, ParametersAreReducedWithoutAutograd) {
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return values(rank, {5}).requires_grad_(true); });
  together(groups, [&](const Group& group) { return group.all_reduce(tensors[group.rank()]); });
  for (const at::Tensor& tensor : tensors) {
    expect_equal(tensor.detach(), sum_of(ranks, {5}));
    EXPECT_TRUE(tensor.is_leaf());
  }
}

// Each rank refuses its call at once. The refused calls count as collectives, so the next ones fit together.
TEST_P(GroupTensors, RefuseInvalidArguments) {
  const at::Tensor tensor = at::zeros({2 * ranks});
  const auto expect = [&](const auto& begin, ErrorKind kind, const std::string& words) {
    for (const Group& group : groups) {
      rpc::Future<void> future = begin(group);
      EXPECT_TRUE(future.ready());
      test::expect_error(std::move(future), kind, words, words);
    }
  };
  using G = const Group&;
  using enum ErrorKind;
  expect([&](G group) { return group.broadcast(tensor.to_sparse(), 0); }, unsupported, "dense");
  expect([](G group) { return group.all_reduce(at::zeros({2}, at::kMeta)); }, unsupported, "meta");
  expect([](G group) { return group.all_reduce(at::zeros({1}).expand({5})); }, invalid_argument, "expanded");
  expect([&](G group) { return group.all_reduce(tensor, ReduceOp::bit_and); }, unsupported, "bit_and");
  expect([&](G group) { return group.broadcast(tensor, -1); }, invalid_argument, "root -1");
  expect([&](G group) { return group.all_gather(at::zeros({2 * ranks}, at::kLong), at::zeros({2})); },
         invalid_argument, "dtype");
  together(groups, [](G group) { return group.barrier(); });
}

// The other ranks do not wait for the rank that refuses its call, whatever the path of the operation is.
TEST_P(GroupTensors, TheRefusalOfOneRankFailsTheCollectiveOnAllRanks) {
  using G = const Group&;
  const auto wrong_on_one = [](G group, std::int64_t n) { return at::zeros({n + group.rank() % 2}); };
  const std::vector<std::function<rpc::Future<void>(G)>> calls{
      [&](G group) { return group.all_reduce(group.rank() == 1 ? at::Tensor() : at::zeros({50'000})); },
      [&](G group) {
        return group.rank() == 1 ? group.broadcast(at::zeros({1}).expand({5}), 0)
                                 : group.broadcast(at::zeros({5}), 0);
      },
      [&](G group) { return group.all_gather(wrong_on_one(group, 2 * ranks), at::zeros({2})); },
      [&](G group) { return group.all_to_all(wrong_on_one(group, ranks), at::zeros({ranks})); },
      [&](G group) {
        return group.gather(group.rank() < 2 ? Tensors(ranks, at::zeros({2})) : Tensors{}, at::zeros({2}), 0);
      },
      [&](G group) {
        return group.all_to_all_v(Tensors(ranks - group.rank() % 2, at::zeros({0})),
                                  Tensors(ranks, at::zeros({0})));
      }};
  for (const auto& begin : calls) {
    Futures futures;
    for (G group : groups) futures.push_back(begin(group));
    Futures others;
    for (int rank = 0; rank < ranks; ++rank)
      if (rank % 2 == 0) others.push_back(std::move(futures[rank]));
    expect_all(std::move(others), ErrorKind::invalid_argument,
               {"rank 1 (worker1)", "refused", "group_test.cc", "expected"});
    test::expect_error(std::move(futures[1]), ErrorKind::invalid_argument, "expected");
  }
  together(groups, [](G group) { return group.barrier(); });
}

// 127 + 127 does not fit into int8.
TEST_P(GroupTensors, TheAverageOfIntegersDoesNotOverflow) {
  for (const at::ScalarType type : {at::kChar, at::kByte, at::kShort, at::kInt}) {
    const std::int64_t largest = type == at::kChar    ? 127
                                 : type == at::kByte  ? 255
                                 : type == at::kShort ? 32'767
                                                      : 2'147'483'647;
    for (const std::int64_t n : {3, 30'000}) {
      Tensors reduced, roots, scattered(ranks), part(ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        reduced.push_back(at::full({n, 2}, largest - rank, type).t());
        roots.push_back(at::full({n}, largest, type));
      }
      together(groups,
               [&](const Group& group) { return group.all_reduce(reduced[group.rank()], ReduceOp::avg); });
      together(groups,
               [&](const Group& group) { return group.reduce(roots[group.rank()], 1, ReduceOp::avg); });
      together(groups, [&](const Group& group) {
        const at::Tensor whole = scattered[group.rank()] = at::full({ranks, n}, largest, type);
        return group.reduce_scatter(part[group.rank()] = whole[group.rank()], whole, ReduceOp::avg);
      });
      std::int64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank) sum += largest - rank;
      for (int rank = 0; rank < ranks; ++rank) {
        expect_equal(reduced[rank], at::full({2, n}, sum / ranks, type), at::toString(type));
        expect_equal(roots[rank], at::full({n}, largest, type));
        expect_equal(scattered[rank], at::full({ranks, n}, largest, type));
      }
    }
  }
}

// As after an operation of LibTorch in place, a backward that needs the old values reports the change.
TEST_P(GroupTensors, ACallIncreasesTheVersionsOfItsOutputs) {
  const at::Tensor x = at::ones({3}, at::TensorOptions().requires_grad(true));
  const Tensors exponents = of_ranks(ranks, [&](int) { return x.exp(); });
  together(groups, [&](const Group& group) { return group.all_reduce(exponents[group.rank()]); });
  for (const at::Tensor& y : exponents) EXPECT_THROW(y.sum().backward(), c10::Error);
  using G = const Group&;
  const auto versions = [&](const auto& begin, const std::vector<bool>& changed) {
    std::vector<Tensors> tensors;
    for (int rank = 0; rank < ranks; ++rank) tensors.push_back({at::empty({ranks}), at::empty({1})});
    together(groups, [&](G group) { return begin(group, tensors[group.rank()]); });
    for (const Tensors& of_rank : tensors)
      for (std::size_t i = 0; i < changed.size(); ++i) EXPECT_EQ(of_rank[i]._version() > 0, changed[i]) << i;
  };
  versions([](G group, const Tensors& t) { return group.broadcast(t, 0); }, {true, true});
  versions([](G group, const Tensors& t) { return group.reduce(t[0], 0); }, {true, false});
  versions([](G group, const Tensors& t) { return group.all_gather(t[0], t[1]); }, {true, false});
  versions([](G group, const Tensors& t) { return group.reduce_scatter(t[1], t[0]); }, {false, true});
  versions(
      [&](G group, const Tensors& t) {
        Futures both;
        both.push_back(group.send(at::zeros({ranks}), (group.rank() + 1) % ranks));
        both.push_back(group.recv(t[0], (group.rank() + ranks - 1) % ranks));
        return rpc::when_all(std::move(both));
      },
      {true, false});
  const c10::InferenceMode inference;
  Tensors in_inference(ranks);
  together(groups, [&](G group) { return group.all_reduce(in_inference[group.rank()] = at::ones({3})); });
}

}  // namespace group_test
}  // namespace weft::collectives::testing
