#include <weft/rpc/balance/replica_plan.h>

#include <weft/rpc/core/fixed_string.h>

#include <gtest/gtest.h>

#include <map>

namespace weft::rpc::replica_plan_test {
namespace {

using namespace std::chrono_literals;
using Outcome = ReplicaPlan::Outcome;

class ReplicaPlanTest : public testing::Test {
 protected:
  // Chooses a replica and completes its call at once. Returns the name of the replica.
  std::string once(ReplicaPlan& plan, Outcome outcome = Outcome::good,
                   std::optional<std::uint64_t> key = {}) {
    const auto choice = plan.choose(now, key);
    if (!choice) return "nobody";
    const std::string name = plan.find(choice->id)->name;
    plan.finish(*choice, outcome, now);
    return name;
  }
  std::map<std::string, int> times(ReplicaPlan& plan, int calls) {
    std::map<std::string, int> count;
    for (int i = 0; i < calls; ++i) ++count[once(plan)];
    return count;
  }
  // Fails calls to the replica until it is ejected, whichever replicas the policy chooses.
  void eject(ReplicaPlan& plan, const std::string& name) {
    for (int i = 0; i < 100 && !replica(plan, name).ejected_until; ++i) {
      const auto choice = plan.choose(now);
      plan.finish(*choice, plan.find(choice->id)->name == name ? Outcome::failed : Outcome::good, now);
    }
    ASSERT_TRUE(replica(plan, name).ejected_until);
  }
  static const ReplicaPlan::Replica& replica(const ReplicaPlan& plan, const std::string& name) {
    for (const auto& found : plan.replicas())
      if (found.name == name) return found;
    throw std::runtime_error("no replica " + name);
  }
  static ReplicaPlan plan_of(std::vector<std::string> names, PeerSetOptions options = {}) {
    ReplicaPlan plan(options);
    plan.set(names);
    return plan;
  }
  ReplicaPlan::Time now{1h};
};

TEST_F(ReplicaPlanTest, ChoosesNoReplicaIfThereIsNone) {
  auto plan = plan_of({});
  EXPECT_FALSE(plan.choose(now));
  plan.set({"a"});
  const auto a = plan.choose(now);
  EXPECT_FALSE(plan.choose(now, {}, {a->id}));
}

TEST_F(ReplicaPlanTest, ConnectedReplicasArePreferred) {
  using Reach = ReplicaPlan::Reach;
  auto plan = plan_of({"a", "b", "c"});
  const auto set = [&](const std::string& name, Reach reach) {
    plan.set_reach(replica(plan, name).id, reach);
  };
  set("a", Reach::connecting);
  set("b", Reach::failing);
  EXPECT_EQ(times(plan, 6), (std::map<std::string, int>{{"c", 6}}));
  set("c", Reach::failing);
  EXPECT_EQ(times(plan, 6), (std::map<std::string, int>{{"a", 6}}));
  set("a", Reach::failing);
  EXPECT_EQ(times(plan, 6), (std::map<std::string, int>{{"a", 2}, {"b", 2}, {"c", 2}}));
  set("a", Reach::ready);
  eject(plan, "a");
  now += 1h;  // a probe is due
  set("a", Reach::failing);
  for (const char* name : {"b", "c"}) set(name, Reach::ready);
  EXPECT_EQ(times(plan, 6), (std::map<std::string, int>{{"b", 3}, {"c", 3}}))
      << "no call is spent to find out whether it can be reached";
  set("a", Reach::ready);
  EXPECT_EQ(once(plan), "a") << "the probe";
}

TEST_F(ReplicaPlanTest, AKeyStaysWithAReplicaThatIsBeingConnected) {
  using Reach = ReplicaPlan::Reach;
  auto plan = plan_of({"a", "b", "c"}, {.policy = BalancePolicy::consistent_hash});
  const std::string home = once(plan, Outcome::good, 7);
  plan.set_reach(replica(plan, home).id, Reach::connecting);
  EXPECT_EQ(once(plan, Outcome::good, 7), home);
  plan.set_reach(replica(plan, home).id, Reach::failing);
  EXPECT_NE(once(plan, Outcome::good, 7), home);
}

TEST_F(ReplicaPlanTest, RoundRobinChoosesEachReplicaEquallyOften) {
  auto plan = plan_of({"a", "b", "c", "a"});
  EXPECT_EQ(plan.replicas().size(), 3U) << "a name counts once";
  EXPECT_EQ(times(plan, 30), (std::map<std::string, int>{{"a", 10}, {"b", 10}, {"c", 10}}));
}

TEST_F(ReplicaPlanTest, LeastOutstandingChoosesAnIdleReplica) {
  auto plan = plan_of({"a", "b", "c"}, {.policy = BalancePolicy::least_outstanding});
  std::map<std::string, ReplicaPlan::Choice> first;
  for (int i = 0; i < 3; ++i) {
    const auto choice = *plan.choose(now);
    first[plan.find(choice.id)->name] = choice;
  }
  ASSERT_EQ(first.size(), 3U);
  plan.finish(first["b"], Outcome::good, now);
  EXPECT_EQ(plan.find(plan.choose(now)->id)->name, "b");
}

TEST_F(ReplicaPlanTest, AKeyChangesItsReplicaOnlyIfThatReplicaLeaves) {
  const PeerSetOptions options{.policy = BalancePolicy::consistent_hash};
  auto plan = plan_of({"a", "b", "c", "d"}, options);
  auto other = plan_of({"d", "c", "b", "a"}, options);  // as another agent sees it
  std::map<std::uint64_t, std::string> places;
  std::map<std::string, int> share;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    places[key] = once(plan, Outcome::good, name_hash(std::to_string(key)));
    EXPECT_EQ(once(other, Outcome::good, name_hash(std::to_string(key))), places[key]);
    ++share[places[key]];
  }
  for (const auto& [name, keys] : share) EXPECT_NEAR(keys, 250, 75) << name;
  plan.set({"a", "b", "d"});
  for (std::uint64_t key = 0; key < 1000; ++key) {
    const std::string place = once(plan, Outcome::good, name_hash(std::to_string(key)));
    if (places[key] == "c") {
      EXPECT_NE(place, "c");
    } else {
      EXPECT_EQ(place, places[key]);
    }
  }
}

TEST_F(ReplicaPlanTest, AHotKeyUsesAnotherReplicaIfItsReplicaIsFull) {
  auto plan = plan_of({"a", "b", "c", "d"}, {.policy = BalancePolicy::consistent_hash, .max_load = 1.25});
  for (int i = 0; i < 100; ++i) plan.choose(now, 42);
  for (const auto& replica : plan.replicas()) EXPECT_LE(replica.outstanding, 33U) << replica.name;
  auto free = plan_of({"a", "b"}, {.policy = BalancePolicy::consistent_hash, .max_load = 0});
  for (int i = 0; i < 100; ++i) free.choose(now, 42);
  EXPECT_EQ(free.replicas()[0].outstanding * free.replicas()[1].outstanding, 0U) << "unbounded";
}

TEST_F(ReplicaPlanTest, ConsecutiveFailuresEjectAReplica) {
  auto plan = plan_of({"a", "b"});
  for (int i = 0; i < 20; ++i) {  // failures that alternate with successes are not consecutive
    const auto choice = *plan.choose(now);
    const bool fails = plan.find(choice.id)->name == "a" && i % 4 == 0;
    plan.finish(choice, fails ? Outcome::failed : Outcome::good, now);
  }
  EXPECT_FALSE(replica(plan, "a").ejected_until);
  eject(plan, "a");
  EXPECT_EQ(times(plan, 10), (std::map<std::string, int>{{"b", 10}}));
}

TEST_F(ReplicaPlanTest, ASuccessfulProbeReinstatesAReplica) {
  auto plan = plan_of({"a", "b"});
  eject(plan, "a");
  now += 1s;
  const auto probe = *plan.choose(now);
  EXPECT_TRUE(probe.probe);
  EXPECT_EQ(plan.find(probe.id)->name, "a");
  EXPECT_EQ(times(plan, 10), (std::map<std::string, int>{{"b", 10}})) << "one probe at a time";
  plan.finish(probe, Outcome::good, now);
  EXPECT_EQ(times(plan, 10), (std::map<std::string, int>{{"a", 5}, {"b", 5}}));
}

TEST_F(ReplicaPlanTest, AFailedProbeDoublesTheWaitUpToTheLimit) {
  auto plan = plan_of({"a", "b"});
  eject(plan, "a");
  std::chrono::nanoseconds wait = 1s;
  for (int i = 0; i < 10; ++i) {
    now += wait - 1ns;
    EXPECT_EQ(once(plan), "b") << i;
    now += 1ns;
    EXPECT_EQ(once(plan, Outcome::failed), "a") << i;
    wait = std::min<std::chrono::nanoseconds>(2 * wait, 60s);
  }
  now += wait;
  EXPECT_EQ(once(plan, Outcome::good), "a");
  eject(plan, "a");
  now += 1s;
  EXPECT_EQ(once(plan), "a") << "from the beginning again";
}

TEST_F(ReplicaPlanTest, AProbeWithoutAReplyIsRepeated) {
  auto plan = plan_of({"a", "b"});
  eject(plan, "a");
  now += 1s;
  EXPECT_EQ(once(plan, Outcome::unknown), "a");
  EXPECT_EQ(once(plan, Outcome::good), "a");
  EXPECT_FALSE(replica(plan, "a").ejected_until);
}

TEST_F(ReplicaPlanTest, CallsFromBeforeTheEjectionDoNotReinstateTheReplica) {
  auto plan = plan_of({"a", "b"});
  std::vector<ReplicaPlan::Choice> old;
  while (old.size() < 2) {
    const auto choice = *plan.choose(now);
    if (plan.find(choice.id)->name == "a") old.push_back(choice);
  }
  eject(plan, "a");
  plan.finish(old[0], Outcome::good, now);
  EXPECT_TRUE(replica(plan, "a").ejected_until);
  const auto until = *replica(plan, "a").ejected_until;
  plan.finish(old[1], Outcome::failed, now + 10s);
  EXPECT_EQ(*replica(plan, "a").ejected_until, until);
}

TEST_F(ReplicaPlanTest, TheLastReplicaIsNeverEjected) {
  auto plan = plan_of({"a", "b"});
  eject(plan, "a");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(once(plan, Outcome::failed), "b");
  EXPECT_FALSE(replica(plan, "b").ejected_until);
  plan.set({"a"});
  EXPECT_FALSE(replica(plan, "a").ejected_until) << "who served has left";
  EXPECT_EQ(once(plan), "a");
}

TEST_F(ReplicaPlanTest, NewNamesKeepTheStateOfExistingReplicas) {
  auto plan = plan_of({"a", "b", "c"});
  eject(plan, "a");
  const auto id = replica(plan, "b").id;
  const auto leaving = *plan.choose(now);
  plan.set({"b", "a", "d"});
  EXPECT_TRUE(replica(plan, "a").ejected_until);
  EXPECT_EQ(replica(plan, "b").id, id);
  plan.set({"d"});
  plan.finish(leaving, Outcome::failed, now);  // a call of a replica that has left
  plan.set({"a", "d"});
  EXPECT_FALSE(replica(plan, "a").ejected_until) << "it was forgotten";
}

}  // namespace
}  // namespace weft::rpc::replica_plan_test
