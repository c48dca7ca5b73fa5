#include <weft/dist_optim/local/pass_ledger.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_pass_ledger_test {
namespace {

using Admission = PassLedger::Admission;

PassKey key(std::uint64_t number) { return {1, number}; }

PassLedger ledger_of(StepMode mode, const std::vector<std::string>& trainers) {
  PassLedger ledger;
  ledger.set_mode(mode);
  for (const std::string& trainer : trainers) ledger.add_trainer(trainer);
  return ledger;
}

std::uint64_t step(PassLedger& ledger, const std::string& trainer, const std::vector<PassKey>& passes) {
  std::uint64_t staleness = ledger.check_step(trainer, passes);
  ledger.step({{trainer, passes}});
  return staleness;
}

TEST(PassKey, IsOrderedHashedAndPrinted) {
  EXPECT_LT((PassKey{1, 9}), (PassKey{2, 0}));
  EXPECT_EQ(to_string(PassKey{0xab, 1}), "00000000000000ab0000000000000001");
  std::unordered_set<PassKey> set{{1, 2}, {1, 2}, {2, 1}};
  EXPECT_EQ(set.size(), 2u);
}

TEST(PassLedger, OtherTrainersAreAtMostKStepsAheadOfTheSlowest) {
  auto ledger = ledger_of(bounded_staleness(2), {"slow", "fast"});
  ledger.admit("slow", key(0));
  std::uint64_t steps = 0;
  while (ledger.admit("fast", key(1 + steps)) == Admission::admitted) {
    step(ledger, "fast", {key(1 + steps)});
    ++steps;
  }
  EXPECT_EQ(steps, 2u);
  EXPECT_TRUE(ledger.admit_waiting().empty());
  EXPECT_EQ(step(ledger, "slow", {key(0)}), 2u);
  EXPECT_EQ(ledger.admit_waiting(), std::vector{key(3)});
}

TEST(PassLedger, Stale0LetsOneTrainerAtATimeRead) {
  auto ledger = ledger_of(bounded_staleness(0), {"a", "b", "c"});
  EXPECT_EQ(ledger.admit("a", key(1)), Admission::admitted);
  EXPECT_EQ(ledger.admit("b", key(2)), Admission::waiting);
  EXPECT_EQ(ledger.admit("c", key(3)), Admission::waiting);
  EXPECT_EQ(ledger.admit("a", key(4)), Admission::admitted) << "its group reads already";
  EXPECT_EQ(ledger.admit("b", key(5)), Admission::waiting);
  EXPECT_TRUE(ledger.admit_waiting().empty());
  EXPECT_EQ(step(ledger, "a", {key(1), key(4)}), 0u);
  EXPECT_EQ(ledger.admit_waiting(), (std::vector{key(2), key(5)}))
      << "first come; b's second goes with its first";
  EXPECT_EQ(ledger.pin(key(2)), 1u);
}

TEST(PassLedger, PassesWithoutAnOptimizerPinButNeverWaitNorCount) {
  auto ledger = ledger_of(bounded_staleness(0), {"a"});
  ledger.admit("a", key(1));
  EXPECT_EQ(ledger.admit("visitor", key(2)), Admission::admitted);
  EXPECT_TRUE(ledger.read_by_others({{"a", {key(1)}}}));
  EXPECT_EQ(step(ledger, "a", {key(1)}), 0u);
  EXPECT_EQ(ledger.pin(key(2)), 0u);
  EXPECT_EQ(ledger.admit("a", key(3)), Admission::admitted);
}

TEST(PassLedger, APreparedStepCountsInAdditionToOpenPasses) {
  auto ledger = ledger_of(bounded_staleness(2), {"a", "b", "c"});
  ledger.admit("a", key(1));
  ledger.admit("a", key(2));
  ledger.check_step("a", {key(1)});
  ledger.prepare_step("a", {key(1)});
  EXPECT_EQ(ledger.admit("a", key(3)), Admission::waiting) << "it would stay open beside the step";
  EXPECT_EQ(ledger.admit("b", key(4)), Admission::admitted);
  EXPECT_EQ(ledger.admit("c", key(5)), Admission::waiting) << "the second step of a would be 3 steps old";
  EXPECT_EQ(step(ledger, "a", {key(1)}), 0U);
  ledger.end_prepared("a", {key(1)});
  EXPECT_EQ(ledger.admit_waiting(), std::vector{key(3)});
  EXPECT_EQ(step(ledger, "b", {key(4)}), 1U);
  EXPECT_TRUE(ledger.admit_waiting().empty());
  EXPECT_EQ(step(ledger, "a", {key(2), key(3)}), 2U);
  EXPECT_EQ(ledger.admit_waiting(), std::vector{key(5)});
}

TEST(PassLedger, PassesBetweenTwoStepsOfATrainerShareTheirFirstPin) {
  auto ledger = ledger_of(bounded_staleness(3), {"a", "b"});
  ledger.admit("a", key(1));
  ledger.admit("b", key(2));
  step(ledger, "b", {key(2)});
  ledger.admit("a", key(3));
  EXPECT_EQ(ledger.pin(key(3)), 0u);
  EXPECT_EQ(step(ledger, "a", {key(1), key(3)}), 1u);
  ledger.admit("a", key(4));
  EXPECT_EQ(ledger.pin(key(4)), 2u);
  ledger.release(key(4));
  EXPECT_EQ(ledger.take_dropped(), std::vector<std::uint64_t>{0});
}

TEST(PassLedger, APartOfATrainersPassesStepsOnlyWhereTheBoundHoldsForTheRest) {
  auto ledger = ledger_of(bounded_staleness(1), {"a", "b"});
  for (int i = 1; i <= 3; ++i) ledger.admit("a", key(static_cast<std::uint64_t>(i)));
  EXPECT_EQ(step(ledger, "a", {key(1)}), 0u);  // the others are then one step old
  refusal(rpc::ErrorKind::failed_precondition, [&] { step(ledger, "a", {key(2)}); }, "trainer a");
  EXPECT_EQ(ledger.newest(), 1u);
  EXPECT_EQ(step(ledger, "a", {key(2), key(3)}), 1u);
}

TEST(PassLedger, NamesTrainersInMessages) {
  PassLedger ledger;
  ledger.set_mode(bounded_staleness(1));
  ledger.add_trainer("1f", "alice");
  ledger.add_trainer("2e", "bob");
  ledger.admit("1f", key(1));
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.admit("2e", key(1)); }, "trainer alice, not to bob");
  refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.check_step("2e", {key(2)}); }, "of trainer bob");
}

TEST(PassLedger, RefusesUnknownRepeatedAndForeignPasses) {
  auto ledger = ledger_of(bounded_staleness(1), {"a", "b"});
  ledger.admit("a", key(1));
  refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.check_step("a", {key(9)}); });
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.check_step("a", {key(1), key(1)}); });
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.check_step("b", {key(1)}); });
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.admit("b", key(1)); });
  step(ledger, "a", {key(1)});
  refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.check_step("a", {key(1)}); });
}

TEST(PassLedger, ReportsVersionsThatOthersReadAndVersionsWithoutReaders) {
  auto ledger = ledger_of(bounded_staleness(2), {"a", "b"});
  ledger.admit("a", key(1));
  EXPECT_FALSE(ledger.read_by_others({{"a", {key(1)}}}));
  ledger.admit("b", key(2));
  EXPECT_TRUE(ledger.read_by_others({{"a", {key(1)}}}));
  EXPECT_FALSE(ledger.read_by_others({{"a", {key(1)}}, {"b", {key(2)}}}));
  ledger.retain(0);  // a reader in the gate
  EXPECT_TRUE(ledger.read_by_others({{"a", {key(1)}}, {"b", {key(2)}}}));
  step(ledger, "a", {key(1)});
  ledger.release(key(2));
  EXPECT_TRUE(ledger.take_dropped().empty());
  ledger.unretain(0);
  EXPECT_EQ(ledger.take_dropped(), std::vector<std::uint64_t>{0});
  EXPECT_TRUE(ledger.take_dropped().empty());
}

TEST(PassLedger, APassMayNameAVersionThatAnotherOneKeeps) {
  auto ledger = ledger_of(bounded_staleness(3), {"a", "b"});
  ledger.admit("a", key(1));
  step(ledger, "a", {key(1)});
  ledger.admit_at("a", key(2), 1);
  step(ledger, "b", {});
  ledger.admit_at("a", key(3), 1);
  ledger.admit_at("a", key(3), 1);  // again
  EXPECT_EQ(ledger.pin(key(3)), 1U);
  ledger.admit("a", key(4));
  EXPECT_EQ(ledger.pin(key(4)), 2U) << "it shares no pin with them";
  ledger.release(key(2));
  EXPECT_TRUE(ledger.take_dropped().empty());
  const auto refused = [&](const std::string& trainer, PassKey pass, std::uint64_t version) {
    return refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.admit_at(trainer, pass, version); });
  };
  EXPECT_NE(refused("a", key(3), 2).find("reads version 1"), std::string::npos);
  EXPECT_NE(refused("b", key(5), 3).find("newest is 2"), std::string::npos);
  EXPECT_NE(refused("b", key(5), 0).find("kept: 1, 2;"), std::string::npos);
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.admit_at("b", key(3), 1); });
  EXPECT_EQ(ledger.trainer_of(key(3)), "a");
  EXPECT_EQ(ledger.trainer_of(key(5)), std::nullopt);
  ledger.release(key(3));
  EXPECT_EQ(ledger.take_dropped(), (std::vector<std::uint64_t>{1}));
}

TEST(PassLedger, AVersionThatWouldBreakTheBoundIsRefused) {
  auto ledger = ledger_of(bounded_staleness(1), {"a", "b"});
  ledger.admit("a", key(1));
  ledger.admit("b", key(2));
  step(ledger, "b", {key(2)});
  const auto refused = [&](const std::string& trainer, std::uint64_t version) {
    return refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.admit_at(trainer, key(3), version); });
  };
  refused("b", 0);  // a's step would make it two steps old
  refused("b", 1);  // its step would make a's pass two steps old
  EXPECT_EQ(ledger.open(), 1U);
  EXPECT_EQ(ledger.admit("b", key(3)), Admission::waiting);
  EXPECT_NE(refused("b", 1).find("waits"), std::string::npos);
  EXPECT_EQ(step(ledger, "a", {key(1)}), 1U);
}

TEST(PassLedger, OnlyTheNewestVersionMayBeNamedInSynchronousModeAndNoneInFree) {
  auto ledger = ledger_of(synchronous, {"a", "b"});
  ledger.admit("a", key(1));
  step(ledger, "b", {});
  ledger.admit_at("b", key(2), 1);
  const auto refused = [&](std::uint64_t version) {
    return refusal(rpc::ErrorKind::failed_precondition, [&] { ledger.admit_at("b", key(3), version); });
  };
  EXPECT_NE(refused(0).find("newest, 1"), std::string::npos);
  ledger.hold("b");
  EXPECT_NE(refused(1).find("its round"), std::string::npos);
  ledger.set_mode(dist_optim::hogwild);
  EXPECT_NE(refused(1).find("hogwild"), std::string::npos);
}

// Random trainers with random passes. For any sequence: a whole step is never refused, and no step that could
// be prepared waits. No step is older than k. Passes that wait for the bound are admitted in FIFO order. A
// version is dropped only if no pass reads it. At the end, when all open passes have stepped or were
// released, no pass waits.
class StaleBound : public testing::Test {
 protected:
  void run(unsigned seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    auto below = [&](std::uint64_t n) {
      return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random);
    };
    int k = static_cast<int>(below(5));
    std::vector<std::string> trainers;
    for (std::uint64_t i = 0; i <= below(6); ++i) trainers.push_back("t" + std::to_string(i));
    auto ledger = ledger_of(bounded_staleness(k), trainers);

    std::map<std::string, std::vector<PassKey>> open;
    std::map<std::string, std::deque<std::vector<PassKey>>> prepared;  // steps, in their order
    std::map<PassKey, std::uint64_t> pins;
    std::map<PassKey, std::string> owner;
    std::vector<PassKey> line;  // waiting passes, in order of arrival
    std::uint64_t next = 0;
    std::set<std::uint64_t> dropped;
    auto opened = [&](PassKey pass) {
      open[owner[pass]].push_back(pass);
      pins[pass] = ledger.pin(pass).value();
      ASSERT_FALSE(dropped.contains(pins[pass]));
    };
    auto settle = [&] {
      for (PassKey pass : ledger.admit_waiting()) {
        auto place = std::find(line.begin(), line.end(), pass);
        ASSERT_NE(place, line.end());
        // Only a trainer with an open pass or a prepared step may be admitted before an earlier one.
        if (open[owner[pass]].empty()) {
          ASSERT_TRUE(std::all_of(line.begin(), place,
                                  [&](PassKey earlier) { return !prepared[owner[earlier]].empty(); }));
        }
        line.erase(place);
        opened(pass);
      }
      for (std::uint64_t version : ledger.take_dropped()) {
        ASSERT_TRUE(dropped.insert(version).second);
        for (const auto& [trainer, passes] : open) {
          for (PassKey pass : passes) ASSERT_NE(pins[pass], version);
        }
        for (const auto& [trainer, steps] : prepared) {
          for (const auto& passes : steps)
            for (PassKey pass : passes) ASSERT_NE(pins[pass], version);
        }
      }
    };
    auto commit = [&](const std::string& trainer) {
      const auto passes = prepared[trainer].front();
      prepared[trainer].pop_front();
      ASSERT_LE(ledger.check_step(trainer, passes),
                static_cast<std::uint64_t>(k));  // throws if the ledger refuses it
      ledger.step({{trainer, passes}});
      ledger.end_prepared(trainer, passes);
      settle();
    };
    auto step_or_release = [&](const std::string& trainer, bool release) {
      auto passes = std::exchange(open[trainer], {});
      if (release) {
        for (PassKey pass : passes) ledger.release(pass);
      } else {
        std::uint64_t oldest = ledger.newest();
        for (PassKey pass : passes) oldest = std::min(oldest, pins[pass]);
        std::uint64_t staleness = ledger.check_step(trainer, passes);  // throws if the rule does not suffice
        ASSERT_EQ(staleness, ledger.newest() - oldest);
        ASSERT_LE(staleness, static_cast<std::uint64_t>(k));
        ledger.step({{trainer, passes}});
      }
      settle();
    };

    for (int i = 0; i < 200; ++i) {
      const std::string& trainer = trainers[below(trainers.size())];
      std::uint64_t choice = below(10);
      if (!prepared[trainer].empty() && choice >= 5 && choice < 9) {
        commit(trainer);
        if (HasFatalFailure()) return;
        continue;
      }
      if (choice < 5) {
        PassKey pass = key(next++);
        owner[pass] = trainer;
        if (below(4) == 0) {  // at a version that may not be kept, or may not be permitted
          try {
            ledger.admit_at(trainer, pass, ledger.newest() - std::min(ledger.newest(), below(4)));
            opened(pass);
          } catch (const rpc::Error&) {
          }
        } else if (ledger.admit(trainer, pass) == Admission::admitted) {
          opened(pass);
        } else {
          line.push_back(pass);
        }
      } else if (choice < 8) {
        if (!open[trainer].empty()) step_or_release(trainer, false);
      } else if (choice == 8) {
        if (!open[trainer].empty()) step_or_release(trainer, true);
      } else if (open[trainer].size() > 1) {  // some of them, which may be refused
        std::vector<PassKey> part{open[trainer][below(open[trainer].size())]};
        try {
          ASSERT_LE(ledger.check_step(trainer, part), static_cast<std::uint64_t>(k));
          std::erase(open[trainer], part[0]);
          if (below(2) == 0 || !prepared[trainer].empty()) {
            ledger.prepare_step(trainer, part);
            prepared[trainer].push_back(part);
          } else {
            ledger.step({{trainer, part}});
            settle();
          }
        } catch (const rpc::Error&) {
        }
      }
      if (HasFatalFailure()) return;
    }
    for (bool more = true; more;) {
      more = false;
      for (const std::string& trainer : trainers) {
        if (open[trainer].empty() && prepared[trainer].empty()) continue;
        if (!prepared[trainer].empty()) {
          commit(trainer);
        } else {
          step_or_release(trainer, below(2) == 0);
        }
        if (HasFatalFailure()) return;
        more = true;
      }
    }
    EXPECT_EQ(ledger.waiting(), 0u);
    EXPECT_TRUE(line.empty());
    EXPECT_EQ(ledger.open(), 0u);
  }
};

TEST_F(StaleBound, HoldsForAThousandRandomRuns) {
  for (unsigned seed = 0; seed < 1000 && !HasFailure(); ++seed) run(seed);
}

TEST(PassLedger, PassesAreAdoptedByTheTrainerThatAttachesLater) {
  auto ledger = ledger_of(synchronous, {"a"});
  ledger.admit("unknown", key(1));
  ledger.admit("other", key(2));
  refusal(rpc::ErrorKind::invalid_argument, [&] { ledger.admit("a", key(1)); });
  ledger.adopt_passes("unknown", "a");
  EXPECT_EQ(ledger.admit("a", key(1)), Admission::admitted);
  EXPECT_EQ(ledger.trainer_of(key(2)), "other");
}

}  // namespace
}  // namespace weft::dist_optim::local_pass_ledger_test
