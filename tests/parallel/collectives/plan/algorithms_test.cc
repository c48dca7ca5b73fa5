#include <weft/parallel/collectives/plan/internal/algorithms.h>

#include "tests/parallel/collectives/plan/plan_machine.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace weft::collectives::testing {
namespace algorithms_test {

using MakePlan = std::function<Plan(Member, std::size_t)>;

std::uint64_t sum(std::uint64_t left, std::uint64_t right) { return left + right; }

// This operation is neither associative nor commutative, so equal results prove equal operations in the same
// order.
std::uint64_t mixed(std::uint64_t left, std::uint64_t right) {
  return (left * 0x9E3779B97F4A7C15ULL) ^ std::rotl(right, 23) ^ (right * 0xC2B2AE3D27D4EB4FULL);
}

Numbers values_of(int rank, std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + static_cast<std::uint64_t>(rank));
  Numbers values(n);
  for (auto& value : values) value = random();
  return values;
}

Numbers total(int ranks, std::size_t n, std::uint64_t seed) {
  Numbers all(n, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers values = values_of(rank, n, seed);
    for (std::size_t i = 0; i < n; ++i) all[i] += values[i];
  }
  return all;
}

std::vector<Plan> plans_of(int ranks, std::size_t chunk, const std::function<Plan(Member)>& make) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank)
    plans.push_back(make({.rank = rank, .ranks = ranks, .chunk = chunk}));
  return plans;
}

Numbers part(const Numbers& all, Range range) { return {all.begin() + range.begin, all.begin() + range.end}; }

struct Size {
  int ranks;
  std::size_t n, chunk;
};

std::vector<Size> sizes() {
  std::vector<Size> sizes;
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const std::size_t n : {0, 1, 5, 64, 101}) {
      for (const std::size_t chunk : {0, 1, 7}) sizes.push_back({ranks, n, chunk});
    }
  }
  for (const int ranks : {16, 31}) sizes.push_back({ranks, 200, 3});
  return sizes;
}

// Runs the plans of all ranks. Expects the output of each rank. inputs, outputs: by rank.
void expect_outputs(const Size& size, const std::function<Plan(Member)>& make,
                    const std::vector<Numbers>& inputs, const std::vector<Numbers>& outputs,
                    std::uint64_t seed, bool one_memory = false) {
  SCOPED_TRACE(::testing::Message() << size.ranks << " ranks, " << size.n << " elements in chunks of "
                                    << size.chunk);
  PlanMachine machine(plans_of(size.ranks, size.chunk, make), one_memory, sum);
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    machine.give(rank, inputs[rank], outputs[rank].size());
  ASSERT_TRUE(machine.run(seed));
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    ASSERT_EQ(machine.output(rank), outputs[rank]) << rank;
}
template <class F>
std::vector<Numbers> by_rank(int ranks, F numbers_of) {
  std::vector<Numbers> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers_of(rank));
  return all;
}
std::vector<Numbers> inputs_of(int ranks, std::size_t n, std::uint64_t seed) {
  return by_rank(ranks, [&](int rank) { return values_of(rank, n, seed); });
}

struct AllReduce {
  const char* name;
  MakePlan make;
};

const std::vector<AllReduce>& all_reduces() {
  static const std::vector<AllReduce> all{
      {"ring", ring_all_reduce}, {"doubling", doubling_all_reduce}, {"halving", halving_all_reduce}};
  return all;
}

TEST(AllReducePlan, GivesEveryRankTheSumOfAll) {
  for (const AllReduce& algorithm : all_reduces()) {
    SCOPED_TRACE(algorithm.name);
    for (const Size& size : sizes()) {
      const std::uint64_t seed = size.n + size.chunk;
      const std::vector<Numbers> sums(static_cast<std::size_t>(size.ranks), total(size.ranks, size.n, seed));
      for (const bool one_memory : {true, false})
        expect_outputs(
            size, [&](Member me) { return algorithm.make(me, size.n); }, inputs_of(size.ranks, size.n, seed),
            sums, seed, one_memory);
    }
  }
}

TEST(AllReducePlan, DoesTheSameOperationsInTheSameOrderForEveryRankAndInEveryRun) {
  for (const AllReduce& algorithm : all_reduces()) {
    for (const int ranks : {2, 3, 4, 7, 8, 12}) {
      Numbers first;
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        PlanMachine machine(plans_of(ranks, 4, [&](Member me) { return algorithm.make(me, 50); }), true,
                            mixed);
        for (int rank = 0; rank < ranks; ++rank) machine.give(rank, values_of(rank, 50, 1), 50);
        ASSERT_TRUE(machine.run(seed));
        if (first.empty()) first = machine.output(0);
        for (int rank = 0; rank < ranks; ++rank)
          ASSERT_EQ(machine.output(rank), first) << algorithm.name << " of " << ranks;
      }
    }
  }
}

TEST(ReducePlan, GivesTheRootTheSumOfAllAndLeavesTheOthersOutputsAlone) {
  for (const auto& make : {tree_reduce, chain_reduce}) {
    for (const Size& size : sizes()) {
      const int root = size.ranks / 2;
      const auto outputs = by_rank(size.ranks, [&](int rank) {
        return rank == root ? total(size.ranks, size.n, 3) : Numbers(size.n, PlanMachine::unset);
      });
      expect_outputs(
          size, [&](Member me) { return make(me, root, size.n); }, inputs_of(size.ranks, size.n, 3), outputs,
          size.n);
    }
  }
}

TEST(BroadcastPlan, GivesEveryRankTheRootsElements) {
  for (const auto& make : {tree_broadcast, chain_broadcast}) {
    for (const Size& size : sizes())
      for (const int root : {0, size.ranks - 1, size.ranks / 3}) {
        const auto inputs = inputs_of(size.ranks, size.n, 4);
        const std::vector<Numbers> outputs(inputs.size(), inputs[static_cast<std::size_t>(root)]);
        expect_outputs(
            size, [&](Member me) { return make(me, root, size.n); }, inputs, outputs, size.n, true);
      }
  }
}

// Blocks of uneven sizes, some of them empty.
std::vector<Range> uneven(int ranks, std::size_t n) {
  std::vector<std::size_t> sizes;
  for (int rank = 0; rank < ranks; ++rank)
    sizes.push_back(rank % 3 == 1 ? 0 : n + static_cast<std::size_t>(rank));
  return blocks_of(sizes);
}

TEST(AllGatherPlan, GivesEveryRankAllBlocks) {
  for (const auto& make : {ring_all_gather, doubling_all_gather}) {
    for (const auto& [ranks, n, chunk] : sizes()) {
      if (make == doubling_all_gather && !is_power_of_two(ranks)) continue;
      for (const auto& blocks : {even_blocks(n, ranks), uneven(ranks, n)}) {
        const Numbers all = values_of(0, blocks.back().end, 5);
        expect_outputs(
            {ranks, n, chunk}, [&](Member me) { return make(me, blocks); },
            by_rank(ranks, [&](int rank) { return part(all, blocks[rank]); }),
            by_rank(ranks, [&](int) { return all; }), n);
      }
    }
  }
}

TEST(ReduceScatterPlan, GivesEveryRankItsBlockOfTheSum) {
  for (const auto& make : {ring_reduce_scatter, halving_reduce_scatter}) {
    for (const auto& [ranks, n, chunk] : sizes()) {
      if (make == halving_reduce_scatter && !is_power_of_two(ranks)) continue;
      for (const auto& blocks : {even_blocks(n, ranks), uneven(ranks, n)}) {
        const Numbers sums = total(ranks, blocks.back().end, 6);
        expect_outputs(
            {ranks, n, chunk}, [&](Member me) { return make(me, blocks); },
            inputs_of(ranks, blocks.back().end, 6),
            by_rank(ranks, [&](int rank) { return part(sums, blocks[rank]); }), n);
      }
    }
  }
}

TEST(GatherAndScatterPlans, ReverseEachOther) {
  for (const auto& [ranks, n, chunk] : sizes()) {
    const int root = ranks - 1;
    const auto blocks = uneven(ranks, n);
    const Numbers whole = values_of(0, blocks.back().end, 7);
    const auto parts = by_rank(ranks, [&](int rank) { return part(whole, blocks[rank]); });
    const auto at_root = by_rank(ranks, [&](int rank) { return rank == root ? whole : Numbers{}; });
    const Size size{ranks, n, chunk};
    expect_outputs(size, [&](Member me) { return direct_scatter(me, root, blocks); }, at_root, parts, n);
    expect_outputs(size, [&](Member me) { return direct_gather(me, root, blocks); }, parts, at_root, n);
  }
}

TEST(AllToAllPlan, GivesEveryRankItsBlockOfEachRank) {
  for (const auto& [ranks, n, chunk] : sizes()) {
    // Rank a sends (a + 2 b) % 4 * n elements to rank b. The sizes differ by direction, and some are 0.
    const auto amount = [n = n](int from, int to) {
      return static_cast<std::size_t>((from + 2 * to) % 4) * n;
    };
    const auto blocks = [&, ranks = ranks](auto size) {
      std::vector<std::size_t> sizes;
      for (int rank = 0; rank < ranks; ++rank) sizes.push_back(size(rank));
      return blocks_of(sizes);
    };
    const auto to = [&](int me) { return blocks([&](int rank) { return amount(me, rank); }); };
    const auto from = [&](int me) { return blocks([&](int rank) { return amount(rank, me); }); };
    const auto inputs = by_rank(ranks, [&](int rank) { return values_of(rank, to(rank).back().end, 8); });
    std::vector<Numbers> outputs(inputs.size());
    for (std::size_t rank = 0; rank < outputs.size(); ++rank)
      for (std::size_t sender = 0; sender < inputs.size(); ++sender) {
        const Numbers piece = part(inputs[sender], to(static_cast<int>(sender))[rank]);
        outputs[rank].insert(outputs[rank].end(), piece.begin(), piece.end());
      }
    expect_outputs(
        {ranks, n, chunk}, [&](Member me) { return pairwise_all_to_all(me, to(me.rank), from(me.rank)); },
        inputs, outputs, n);
  }
}

TEST(BarrierPlan, CompletesOnNoRankBeforeAllHaveJoined) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    const auto plans = plans_of(ranks, 0, dissemination_barrier);
    PlanMachine whole(plans, false, sum);
    ASSERT_TRUE(whole.run(1));
    for (int absent = 0; absent < ranks; ++absent) {
      PlanMachine machine(plans, false, sum, absent);
      ASSERT_EQ(machine.run(1), ranks == 1);
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank == absent) continue;
        ASSERT_FALSE(machine.ended(rank)) << rank << " of " << ranks << " without " << absent;
      }
    }
  }
}

// Formulas of docs/internals/collectives.md, for jobs that no machine here could run.
TEST(PlanCosts, EqualTheFormulasFor8To1024Ranks) {
  for (const int ranks : {8, 64, 256, 1024}) {
    const std::size_t p = static_cast<std::size_t>(ranks), n = 4096 * p;
    const auto rounds = static_cast<std::size_t>(std::bit_width(p) - 1);
    const auto blocks = even_blocks(n, ranks);
    for (const int rank : {0, 1, ranks / 2, ranks - 1}) {
      const Member me{.rank = rank, .ranks = ranks};
      const auto cost = [](std::size_t messages, std::size_t elements, std::size_t reduced) {
        return PlanCost{messages, elements, messages, elements, reduced};
      };
      EXPECT_EQ(cost_of(ring_all_reduce(me, n)), cost(2 * (p - 1), 2 * (n - n / p), n - n / p));
      EXPECT_EQ(cost_of(doubling_all_reduce(me, n)), cost(rounds, rounds * n, rounds * n));
      EXPECT_EQ(cost_of(halving_all_reduce(me, n)), cost(2 * rounds, 2 * (n - n / p), n - n / p));
      EXPECT_EQ(cost_of(ring_all_gather(me, blocks)), cost(p - 1, n - n / p, 0));
      EXPECT_EQ(cost_of(doubling_all_gather(me, blocks)), cost(rounds, n - n / p, 0));
      EXPECT_EQ(cost_of(ring_reduce_scatter(me, blocks)), cost(p - 1, n - n / p, n - n / p));
      EXPECT_EQ(cost_of(halving_reduce_scatter(me, blocks)), cost(rounds, n - n / p, n - n / p));
      EXPECT_EQ(cost_of(pairwise_all_to_all(me, blocks, blocks)), cost(p - 1, n - n / p, 0));
      EXPECT_EQ(cost_of(dissemination_barrier(me)), cost(rounds, 0, 0));
    }
  }
}

TEST(PlanCosts, OfTreesAndChains) {
  for (const int ranks : {8, 64, 1024}) {
    const std::size_t p = static_cast<std::size_t>(ranks), n = 1000;
    const auto rounds = static_cast<std::size_t>(std::bit_width(p) - 1);
    std::size_t broadcast = 0, reduced = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Member me{.rank = rank, .ranks = ranks, .chunk = 100};
      const PlanCost down = cost_of(tree_broadcast({.rank = rank, .ranks = ranks}, 5, n));
      EXPECT_LE(down.messages_sent, rounds);
      EXPECT_EQ(down.messages_received, rank == 5 ? 0 : 1);
      broadcast += down.messages_sent;
      reduced += cost_of(tree_reduce(me, 5, n)).elements_reduced;
      EXPECT_EQ(cost_of(chain_broadcast(me, 5, n)).messages_sent, rank == 4 ? 0 : 10);
      EXPECT_EQ(cost_of(chain_reduce(me, 5, n)).messages_sent, rank == 5 ? 0 : 10);
    }
    EXPECT_EQ(broadcast, p - 1);
    EXPECT_EQ(reduced, (p - 1) * n);
  }
}

// Chunks are forwarded when they arrive. The last rank of a chain waits for one chunk per hop, not for the
// whole block.
TEST(Chunks, AreForwardedBeforeTheNextOneArrives) {
  const Plan plan = chain_broadcast({.rank = 1, .ranks = 3, .chunk = 10}, 0, 40);
  ASSERT_EQ(plan.steps.size(), 8U);
  for (std::size_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(plan.steps[4 + chunk].after, std::vector<std::uint32_t>{static_cast<std::uint32_t>(chunk)});
  }
}

}  // namespace algorithms_test
}  // namespace weft::collectives::testing
