// A seed determines a run: the run is the same each time, differs for other seeds, and is printed if it
// fails.
#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "tests/rpc/simulation/sim_support.h"

namespace weft::test::sim_seeds_test {
namespace {

using namespace std::chrono_literals;

// A small simulation that uses all features.
void simulate(SimWorld& world) {
  world.network().weather() = SimWeather::draw(world.random());
  Pair pair(world);
  const auto writer = pair.write(some_text(world.random(), 3000), TextWriter::Then::close);
  const auto reader = pair.read();
  const auto handlers = pair.bert.make_executor();
  auto ran = std::make_shared<int>(0);
  for (int i = 0; i < 5; ++i) handlers->post([ran, i] { *ran = *ran * 7 + i; });
  world.after(world.random().up_to(1ms), [&world] { world.network().partition({"anna"}, {"bert"}); });
  world.after(world.random().up_to(1s), [&world] { world.network().heal(); });
  world.after(world.random().up_to(1s), [&world] {
    if (world.random().coin()) world.crash(*world.find("bert"), SimCrash::host);
  });
  world.run_until_idle();
  world.trace().note(world.now(), std::to_string(*ran) + reader->text);
}

std::uint64_t hash_of(std::uint64_t seed) {
  SimWorld world(seed);
  simulate(world);
  EXPECT_GT(world.trace().size(), 10U);
  return world.trace().hash();
}

TEST(SimSeeds, ASeedIsOneRun) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const std::uint64_t hash = hash_of(seed);
    EXPECT_EQ(hash, hash_of(seed)) << seed;
    hashes.insert(hash);
  }
  EXPECT_EQ(hashes.size(), 200U);
}

// Sets an environment variable for the lifetime of this object.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value, 1);
  }
  ~Environment() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

void fail_now_and_then(SimWorld& world) {
  world.trace().note(world.now(), "seed " + std::to_string(world.seed()) + " was here");
  if (world.seed() % 10 == 4) world.violation("an unlucky number");
  if (world.seed() == 24) throw std::runtime_error("and thrown");
}

TEST(SimSeeds, AFailingSeedIsPrintedWithItsCommand) {
  const SimReport report =
      for_each_seed({.count = 20, .test = "Some.Test", .print = false}, fail_now_and_then);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.failed, (std::vector<std::uint64_t>{4, 14}));
  EXPECT_EQ(report.seeds, 20U);
  for (const char* part : {"seed 4 failed", "an unlucky number", "WEFT_SIM_SEED=4 ",
                           "--gtest_filter=Some.Test", "seed 4 was here", "WEFT_SIM_SEED=14 "})
    EXPECT_NE(report.text.find(part), std::string::npos) << part << " in\n" << report.text;
  EXPECT_NE(report.text.find(program_invocation_name), std::string::npos);
}

TEST(SimSeeds, EndsAfterAFewFailures) {
  const SimReport report = for_each_seed({.count = 1000, .print = false}, fail_now_and_then);
  EXPECT_EQ(report.failed, (std::vector<std::uint64_t>{4, 14, 24}));
  EXPECT_NE(report.text.find("and thrown"), std::string::npos);
}

TEST(SimSeeds, TheEnvironmentReplaysOneOrRunsMore) {
  {
    const Environment one("WEFT_SIM_SEED", "14");
    EXPECT_EQ(for_each_seed({.print = false}, fail_now_and_then).failed, (std::vector<std::uint64_t>{14}));
  }
  {
    const Environment more("WEFT_SIM_SEEDS", "3");
    const SimReport report = for_each_seed({.print = false}, fail_now_and_then);
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.seeds, 3U);
  }
}

TEST(SimTrace, KeepsTheLastEventsAndHashesAll) {
  SimTrace few(2), many(10);
  for (SimTrace* trace : {&few, &many}) {
    trace->add({}, "first", "anna", 1, 2);
    trace->add({}, "second");
    trace->note({}, "third");
  }
  EXPECT_EQ(few.hash(), many.hash());
  EXPECT_EQ(few.tail().find("first"), std::string::npos);
  EXPECT_NE(few.tail().find("third"), std::string::npos);
  EXPECT_NE(many.tail().find("first anna 1 2"), std::string::npos);
  SimTrace other(10);
  other.add({}, "first", "anna", 1, 3);
  other.add({}, "second");
  other.note({}, "third");
  EXPECT_NE(other.hash(), many.hash());
}

}  // namespace
}  // namespace weft::test::sim_seeds_test
