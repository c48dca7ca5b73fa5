#include <weft/parallel/collectives/plan/internal/choice.h>

#include "tests/parallel/collectives/plan/plan_machine.h"

namespace weft::collectives::testing {
namespace choice_test {

std::uint64_t sum(std::uint64_t left, std::uint64_t right) { return left + right; }

using MakePlan = std::function<Plan(Party, std::size_t)>;

// Rooted operations use root 1. Blocks have even sizes.
const std::vector<std::pair<const char*, MakePlan>>& collectives() {
  static const std::vector<std::pair<const char*, MakePlan>> all{
      {"all_reduce", plan_all_reduce},
      {"reduce", [](Party me, std::size_t n) { return plan_reduce(me, 1, n); }},
      {"broadcast", [](Party me, std::size_t n) { return plan_broadcast(me, 1, n); }},
      {"all_gather", [](Party me, std::size_t n) { return plan_all_gather(me, even_blocks(n, me.ranks)); }},
      {"reduce_scatter",
       [](Party me, std::size_t n) { return plan_reduce_scatter(me, even_blocks(n, me.ranks)); }},
      {"gather", [](Party me, std::size_t n) { return plan_gather(me, 1, even_blocks(n, me.ranks)); }},
      {"scatter", [](Party me, std::size_t n) { return plan_scatter(me, 1, even_blocks(n, me.ranks)); }},
      {"all_to_all",
       [](Party me, std::size_t n) {
         // bytes that each rank sends to another one
         const auto blocks = even_blocks(n / me.ranks * me.ranks, me.ranks);
         return plan_all_to_all(me, blocks, blocks);
       }},
      {"barrier", [](Party me, std::size_t) { return plan_barrier(me); }}};
  return all;
}

// No elements, fewer than one for each rank, a small number, and a large one.
const std::size_t sizes[] = {0, 1, 3, 100, 10'000};

PlanMachine machine_of(const MakePlan& make, int ranks, std::size_t n, int absent = -1) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) plans.push_back(make({rank, ranks, 8}, n));
  PlanMachine machine(std::move(plans), false, sum, absent);
  for (int rank = 0; rank < ranks; ++rank) machine.give(rank, Numbers(n, rank + 1), n);
  return machine;
}

TEST(PlanChoice, CompletesOnAllRanksAndOnNoneBeforeAllHaveJoined) {
  for (const auto& [name, make] : collectives())
    for (const int ranks : {2, 3, 4, 5, 8, 9})
      for (const std::size_t n : sizes) {
        SCOPED_TRACE(::testing::Message() << name << " of " << n << " among " << ranks);
        EXPECT_TRUE(machine_of(make, ranks, n).run(n));
        for (int absent = 0; absent < ranks; ++absent) {
          PlanMachine machine = machine_of(make, ranks, n, absent);
          machine.run(n);
          for (int rank = 0; rank < ranks; ++rank)
            EXPECT_TRUE(rank == absent || !machine.ended(rank)) << rank << " without " << absent;
        }
      }
}

TEST(PlanChoice, SendsLittleBeforeAllHaveJoined) {
  for (const auto& [name, make] : collectives())
    for (const int ranks : {2, 5}) {
      PlanMachine machine = machine_of(make, ranks, 10'000, ranks - 1);
      machine.run(1);
      for (int rank = 0; rank < ranks - 1; ++rank)
        EXPECT_EQ(machine.output(rank), Numbers(10'000, PlanMachine::unset)) << name;
    }
}

// Only a small message of the input may be sent at once. All other steps follow the last message of the
// barrier.
TEST(PlanChoice, SendsTheFirstMessageTogetherWithTheBarrier) {
  for (const auto& [name, make] : collectives())
    for (const int ranks : {2, 5}) {
      SCOPED_TRACE(::testing::Message() << name << " among " << ranks);
      const Plan plan = make({0, ranks, 4}, 1 << 20);
      std::vector<std::size_t> signals(plan.steps.size());  // the barrier's messages that precede a step
      std::size_t due = 0, ahead = 0;
      for (std::size_t index = 0; index < plan.steps.size(); ++index) {
        const Step& step = plan.steps[index];
        const bool takes = step.kind == Step::Kind::receive && step.range.empty();
        for (const std::uint32_t earlier : step.after)
          signals[index] = std::max(signals[index], signals[earlier]);
        if (takes) due = signals[index] = due + 1;
        if (step.range.empty()) continue;
        const bool waits = signals[index] == due && due != 0;
        EXPECT_TRUE(waits || (step.kind == Step::Kind::send && step.place == Place::input)) << index;
        if (!waits) ahead += step.range.size() * 4;
      }
      EXPECT_LE(ahead, Bounds{}.ahead_bytes);
      if (std::string_view(name) == "all_reduce" && ranks == 2) {
        EXPECT_GT(ahead, Bounds{}.message_bytes / 2);
      }
    }
}

TEST(PlanChoice, MinimizesRoundsForSmallAndBytesForLargeTensors) {
  const PlanCost little = cost_of(plan_all_reduce({0, 8, 4}, 100)),
                 much = cost_of(plan_all_reduce({0, 8, 4}, 1 << 20));
  EXPECT_EQ(little.messages_sent, 3U) << "log2 of the ranks, and no barrier";
  EXPECT_EQ(much.elements_sent, 2 * 7 * ((1U << 20) / 8)) << "twice, without its own share";
}

}  // namespace choice_test
}  // namespace weft::collectives::testing
