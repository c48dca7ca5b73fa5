// The memory that a collective uses: input and output that overlap, tensors in one piece of memory, and lazy
// conjugate and negative views.
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_memory_test {

class GroupMemory : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupMemory, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// --- Overlaps ---

// On some ranks the same call is valid: the refusal of the others reaches them, and the group continues.
TEST_P(GroupMemory, OverlapsAreRefusedOnAllRanksBeforeDataMoves) {
  const at::Tensor whole = at::ones({ranks, 6}), flat = whole.view({-1}), shifted = flat.narrow(0, 7, 6);
  const auto expect = [&](const auto& begin, const std::string& operation, const std::string& words = {}) {
    Futures futures;
    for (const Group& group : groups) futures.push_back(begin(group));
    expect_all(std::move(futures), ErrorKind::invalid_argument,
               {operation + ": input and output overlap", words});
  };
  expect([&](const Group& group) { return group.all_gather(whole, whole[0]); }, "all_gather",
         "is not exactly part");
  expect([&](const Group& group) { return group.all_gather(whole, shifted); }, "all_gather");
  expect([&](const Group& group) { return group.reduce_scatter(whole[0], whole); }, "reduce_scatter");
  expect([&](const Group& group) { return group.reduce_scatter(shifted, whole); }, "reduce_scatter");
  expect([&](const Group& group) { return group.all_to_all(flat, group.rank() == 1 ? flat : flat.clone()); },
         "all_to_all");
  expect([&](const Group& group) { return group.all_gather(Tensors{whole}, Tensors{shifted}); },
         "all_gather");
  const Tensors parts = of_ranks(ranks, [&](int rank) { return flat.narrow(0, 2 * rank, 2); });
  expect([&](const Group& group) { return group.all_gather_v(parts, parts[1]); }, "all_gather_v");
  expect([&](const Group& group) { return group.reduce_scatter_v(flat.narrow(0, 1, 2), parts); },
         "reduce_scatter_v");
  expect([&](const Group& group) { return group.inlined().all_gather(whole, shifted); }, "all_gather");
  expect_equal(whole, at::ones({ranks, 6}));
  const Tensors tensors = of_ranks(ranks, [&](int rank) { return values(rank, {6}); });
  together(groups, [&](const Group& each) { return each.all_reduce(tensors[each.rank()]); });
  expect_equal(tensors[0], sum_of(ranks, {6}));
}

TEST_P(GroupMemory, EmptyTensorsDoNotOverlap) {
  const at::Tensor whole = at::zeros({ranks, 0});
  together(groups, [&](const Group& group) { return group.all_gather(whole, whole[0]); });
}

// --- Adjacent tensors ---

// Counts the bytes that LibTorch allocates on this thread, where collectives make their copies.
class Allocations final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    if (bytes > 0) allocated += bytes;
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t allocated = 0;
};

template <class F>
std::int64_t allocated_by(F f) {
  const auto allocations = std::make_shared<Allocations>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  f();
  return allocations->allocated;
}

constexpr std::int64_t n = 20'000;  // above the size up to which an all_reduce by messages sums in a copy

// Splits rows of 3 n elements in the order of their columns: two tensors with one row, and one with two
// dimensions.
Tensors pieces_of(const at::Tensor& row) {
  return {row.narrow(0, 0, n), row.narrow(0, n, 0), row.narrow(0, n, n / 2), row.narrow(0, n + n / 2, n / 2),
          row.narrow(0, 2 * n, n).view({10, n / 10})};
}

TEST_P(GroupMemory, AdjacentTensorsAreNotCopied) {
  Tensors reduced, sent, gathered, scattered;
  for (int rank = 0; rank < ranks; ++rank) {
    reduced.push_back(values(rank, {3 * n}));
    sent.push_back(values(rank, {3 * n}));
    gathered.push_back(at::zeros({ranks, 3 * n}));
    gathered.back()[rank].copy_(values(rank, {3 * n}));
    scattered.push_back(values(rank, {ranks, 3 * n}));
  }
  Futures futures;
  EXPECT_EQ(allocated_by([&] {
              for (const Group& group : groups)
                futures.push_back(group.all_reduce(pieces_of(reduced[group.rank()])));
              for (const Group& group : groups)
                futures.push_back(group.broadcast(pieces_of(sent[group.rank()]), 1));
              // With one tensor each rank's part is in place in the whole tensor, so both are in place.
              for (const Group& group : groups)
                futures.push_back(group.all_gather(Tensors{gathered[group.rank()]},
                                                   Tensors{gathered[group.rank()][group.rank()]}));
              for (const Group& group : groups)
                futures.push_back(group.reduce_scatter(Tensors{scattered[group.rank()][group.rank()]},
                                                       Tensors{scattered[group.rank()]}));
            }),
            0);
  for (auto& future : futures) got(std::move(future));
  for (int rank = 0; rank < ranks; ++rank) {
    expect_equal(reduced[rank], sum_of(ranks, {3 * n}));
    expect_equal(sent[rank], values(1, {3 * n}));
    for (int other = 0; other < ranks; ++other) expect_equal(gathered[rank][other], values(other, {3 * n}));
    expect_equal(scattered[rank][rank], sum_of(ranks, {ranks, 3 * n})[rank]);
  }
}

// Tensors may be adjacent on some ranks only. The messages are the same.
TEST_P(GroupMemory, TensorsThatAreNotAdjacentAreCopied) {
  const std::vector<std::function<Tensors(const at::Tensor&)>> apart{
      [](const at::Tensor& from) { return Tensors{from.narrow(0, 0, n), from.narrow(0, n + 1, n)}; },
      [](const at::Tensor& from) { return Tensors{from.narrow(0, n, n), from.narrow(0, 0, n)}; },
      [](const at::Tensor& from) {
        return Tensors{from.narrow(0, 0, n), from.narrow(0, n, n).view({10, n / 10}).t()};
      },
      [](const at::Tensor& from) { return Tensors{from.narrow(0, 0, n).clone(), from.narrow(0, n, n)}; }};
  for (const auto& part : apart) {
    std::vector<Tensors> tensors;
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor own = values(rank, {3 * n});
      tensors.push_back(part(own));
      if (rank != 0) continue;
      const at::Tensor row = at::empty({2 * n});  // adjacent here
      tensors[0] = {row.narrow(0, 0, n).copy_(tensors[0][0]),
                    row.narrow(0, n, n).view(tensors[0][1].sizes()).copy_(tensors[0][1])};
    }
    const Tensors expected{sum_of(ranks, {3 * n})};
    Futures futures;
    const std::int64_t here = allocated_by([&] { futures.push_back(groups[0].all_reduce(tensors[0])); });
    const std::int64_t there = allocated_by([&] { futures.push_back(groups[1].all_reduce(tensors[1])); });
    EXPECT_EQ(here, 0);
    // Other tensors are copied into memory that the ranks share, if they share memory.
    if (groups[1].backend() == GroupBackend::messages) {
      EXPECT_GE(there, 2 * n * 4);
    }
    for (int rank = 2; rank < ranks; ++rank) futures.push_back(groups[rank].all_reduce(tensors[rank]));
    for (auto& future : futures) got(std::move(future));
    for (std::size_t i = 0; i < 2; ++i)
      for (int rank = 0; rank < ranks; ++rank)
        expect_equal(tensors[rank][i].reshape({-1}), part(expected[0])[i].reshape({-1}));
  }
}

// Small tensors are summed in a copy where the ranks send messages.
TEST_P(GroupMemory, ADifferenceLeavesInputsUnchanged) {
  const auto expect = [&](const auto& begin, const auto& input_of) {
    const Tensors inputs = of_ranks(ranks, input_of);
    Futures futures;
    for (const Group& group : groups) futures.push_back(begin(group, inputs[group.rank()]));
    expect_all(std::move(futures), ErrorKind::invalid_argument, {"the ranks call different collectives"});
    for (int rank = 0; rank < ranks; ++rank) expect_equal(inputs[rank], input_of(rank));
  };
  for (const std::int64_t size : {10, 1 << 16})
    for (int other = 0; other < ranks; ++other) {
      const auto op_of = [&](const Group& group) {
        return group.rank() == other ? ReduceOp::max : ReduceOp::sum;
      };
      const auto rows = [&](int rank) { return values(rank, {ranks, size}); };
      expect([](const Group& group, const at::Tensor& t) { return group.all_reduce(t); },
             [&](int rank) { return values(rank, {rank == other ? size + 1 : size}); });
      expect(  // adjacent tensors
          [&](const Group& group, const at::Tensor& t) {
            return group.all_reduce(Tensors{t[0], t[1]}, op_of(group));
          },
          rows);
      expect(  // in place
          [&](const Group& group, const at::Tensor& t) {
            return group.reduce_scatter(t[group.rank()], t, op_of(group));
          },
          rows);
    }
}

// The layout of a sharded model: each rank has a row of all parameters, and each parameter has columns of all
// rows.
TEST_P(GroupMemory, ColumnsOfRowsAreGatheredAndScatteredInPlace) {
  const auto columns_of = [](const at::Tensor& all) {
    return Tensors{all.narrow(1, 0, n), all.narrow(1, n, 2 * n).view({all.size(0), 2, n})};
  };
  const auto row_of = [](const Tensors& columns, int rank) {
    return Tensors{columns[0][rank], columns[1][rank]};
  };
  Tensors gathered, scattered;
  for (int rank = 0; rank < ranks; ++rank) {
    gathered.push_back(at::zeros({ranks, 3 * n}));
    gathered.back()[rank].copy_(values(rank, {3 * n}));
    scattered.push_back(values(rank, {ranks, 3 * n}));
  }
  Futures futures;
  EXPECT_EQ(allocated_by([&] {
              for (const Group& group : groups) {
                const Tensors columns = columns_of(gathered[group.rank()]);
                futures.push_back(group.all_gather(columns, row_of(columns, group.rank())));
              }
              for (const Group& group : groups) {
                const Tensors columns = columns_of(scattered[group.rank()]);
                futures.push_back(group.reduce_scatter(row_of(columns, group.rank()), columns));
              }
            }),
            0);
  for (auto& future : futures) got(std::move(future));
  for (int rank = 0; rank < ranks; ++rank) {
    for (int other = 0; other < ranks; ++other) expect_equal(gathered[rank][other], values(other, {3 * n}));
    expect_equal(scattered[rank][rank], sum_of(ranks, {ranks, 3 * n})[rank]);
  }
}

// --- Views ---

class LazyViews : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, LazyViews, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

at::Tensor complex_of(int rank) { return at::complex(values(rank, {6}), values(rank + 1, {6})); }

TEST_P(LazyViews, OfConjugatesAreSentByValue) {
  Tensors gathered, reduced, given;
  for (int rank = 0; rank < ranks; ++rank) {
    gathered.push_back(at::empty({ranks, 6}, at::kComplexFloat));
    reduced.push_back(complex_of(rank));
    given.push_back(rank == 2 ? complex_of(2) : at::empty({6}, at::kComplexFloat));
  }
  together(groups, [&](const Group& group) {
    return group.all_gather(gathered[group.rank()], complex_of(group.rank()).conj());
  });
  // In place: the operation uses the values that the view represents, and writes the result so that the view
  // represents it.
  together(groups, [&](const Group& group) { return group.all_reduce(reduced[group.rank()].conj()); });
  together(groups, [&](const Group& group) { return group.broadcast(given[group.rank()].conj(), 2); });
  at::Tensor sum = at::zeros({6}, at::kComplexFloat);
  for (int rank = 0; rank < ranks; ++rank) sum += complex_of(rank);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int other = 0; other < ranks; ++other)
      expect_equal(gathered[rank][other], complex_of(other).conj().resolve_conj(), "gathered");
    expect_equal(reduced[rank], sum, "reduced");
    expect_equal(given[rank], complex_of(2), "given");
  }
}

TEST_P(LazyViews, OfNegativesAreSentByValue) {
  at::Tensor received = at::zeros({6});
  const at::Tensor negative = at::_neg_view(values(1, {6}));
  ASSERT_TRUE(negative.is_neg() && negative.is_contiguous());
  auto sent = groups[0].send(negative, 1);
  got(groups[1].recv(received, 0));
  got(std::move(sent));
  expect_equal(received, values(1, {6}).neg());
}

}  // namespace group_memory_test
}  // namespace weft::collectives::testing
