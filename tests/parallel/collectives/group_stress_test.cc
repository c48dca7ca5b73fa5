// Sequences of all operations against a serial oracle: every ordered pair, random ones, several groups, ranks
// that start late.
#include <cstdlib>
#include <numeric>

#include "tests/parallel/collectives/oracle.h"

namespace weft::collectives::testing {
namespace group_stress_test {

using namespace oracle;

class GroupStress : public ::testing::TestWithParam<Backend> {
 protected:
  static std::size_t operations() { return oracles + further_operations().size(); }
  static Step any_step(std::mt19937_64& random, int ranks) {
    Step step = random_step(random, ranks, operations());
    if (GetParam() == Backend::placed) step.placed = random() % 4 != 0;
    return step;
  }
  // $WEFT_COLLECTIVE_SEEDS: how many seeds to run; $WEFT_COLLECTIVE_SEED: the only one.
  static std::vector<std::uint64_t> seeds(std::uint64_t usual, std::uint64_t divisor = 1) {
    const char* const wanted = std::getenv("WEFT_COLLECTIVE_SEEDS");
    const char* const only = std::getenv("WEFT_COLLECTIVE_SEED");
    if (only != nullptr) return {std::strtoull(only, nullptr, 10)};
    if (wanted != nullptr)
      usual = std::max<std::uint64_t>(usual, std::strtoull(wanted, nullptr, 10) / divisor);
    std::vector<std::uint64_t> all(usual);
    std::iota(all.begin(), all.end(), std::uint64_t{0});
    return all;
  }
  static std::vector<std::vector<Group>> two_groups(Company& company) {
    return {company.groups(), company.groups({.name = "other"})};
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupStress,
                         ::testing::Values(Backend::messages, Backend::memory, Backend::placed,
                                           Backend::hosts, Backend::uneven),
                         ::testing::PrintToStringParamName());

// A large all_reduce by parts, then sizes that a rank announces while another still reads the last part.
TEST_P(GroupStress, AnnouncedSizesDoNotTouchAnEarlierResult) {
  const int ranks = on_hosts(GetParam()) ? 4 : 2;
  Company company(ranks, GetParam());
  const auto of = [](std::string_view wanted) {
    std::size_t index = 0;
    while (oracle_operations[index].name != wanted) ++index;
    return index;
  };
  std::vector<Step> steps;
  for (const char* name : {"all_reduce", "reduce"})
    for (int i = 0; i < 60; ++i) {
      steps.push_back({.operation = of(name), .n = 1 << 18, .seed = i, .late = i % ranks});
      steps.push_back({.operation = of("all_to_all_v"), .n = 100, .seed = i, .in_flight = i % 2U * 2});
    }
  run_steps({company.groups()}, steps);
}

TEST_P(GroupStress, EveryOrderedPair) {
  const int ranks = few(GetParam());
  for (const std::uint64_t seed : seeds(1, 50)) {
    SCOPED_TRACE("replay: WEFT_COLLECTIVE_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    Company company(ranks, GetParam());
    auto steps = steps_of_every_pair(random, ranks, operations(), 1 << 16);
    if (GetParam() == Backend::placed)
      for (Step& step : steps) step.placed = random() % 4 != 0;
    run_steps(two_groups(company), steps);
    if (HasFailure()) return;
  }
}

TEST_P(GroupStress, RandomSequences) {
  for (const std::uint64_t seed : seeds(3)) {
    SCOPED_TRACE("replay: WEFT_COLLECTIVE_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int ranks = (on_hosts(GetParam()) ? 3 : 2) + static_cast<int>(random() % 4);
    Company company(ranks, GetParam());
    std::vector<Step> steps;
    for (int i = 0; i < 60; ++i) steps.push_back(any_step(random, ranks));
    run_steps(two_groups(company), steps);
    if (HasFailure()) return;
  }
}

}  // namespace group_stress_test
}  // namespace weft::collectives::testing
