// Jobs of processes that are killed while they save. A later job finds a complete checkpoint.
//
// WEFT_CHECKPOINT_KILLS: the number of kills (10). WEFT_SEED: the seed of the first one.
#include <weft/rpc/job/job.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <random>

#include "tests/parallel/sharded/checkpoint/states.h"
#include "tests/support/child.h"

namespace weft::sharded::testing {
namespace checkpoints_process_test {

using Say = std::function<void(const std::string&)>;

// Resumes, checks the loaded values, and saves one step after the other. Prints "resumed STEP" (-1: no
// checkpoint) and "complete STEP".
void train(const Group& group, const std::filesystem::path& folder, const Say& say) {
  Checkpoints checkpoints(group, folder);
  const auto slices = [&](std::int64_t step) {
    SlicedState state = state_of(whole_state(step), even_split(group.rank(), group.size()));
    state.tensors["copy"] = {{1000}, 0, at::full({1000}, step, at::kLong)};  // equal on all ranks
    state.notes["step"] = std::to_string(step);
    return state;
  };
  const std::int64_t found = checkpoints.latest().value_or(-1);
  if (found >= 0) {
    const SlicedState right = slices(found);
    SlicedState wanted = blank(right);
    if (checkpoints.load(found, wanted) != right.notes) return say("wrong notes");
    for (const auto& [name, tensor] : right.tensors)
      if (!at::equal(bytes_of(wanted.tensors.at(name).values), bytes_of(tensor.values)))
        return say("wrong values of " + name);
  }
  say("resumed " + std::to_string(found));
  for (std::int64_t step = found + 1;; ++step) {
    checkpoints.save(step, slices(step)).get();
    say("complete " + std::to_string(step));
  }
}

class CheckpointProcesses : public ::testing::Test {
 protected:
  void start(int ranks) {
    members.clear();
    store = std::make_unique<test::FileJobStore>();
    for (int rank = 0; rank < ranks; ++rank)
      members.emplace_back([&, rank](int pipe) {
        const Say say = [pipe](const std::string& text) { test::say(pipe, text); };
        try {
          rpc::Job job(collectives::testing::options_in_process(store->url, rank, ranks),
                       collectives::testing::company_layers());
          job.join().get();
          collectives::GroupOptions in_group;
          in_group.shared_memory = false;
          train(Group::create(job.agent(), in_group).get(), folder.path, say);
        } catch (const std::exception& error) {
          say(std::string("failed: ") + error.what());
        }
        while (true) ::pause();
      });
  }
  Folder folder;
  std::unique_ptr<test::FileJobStore> store;
  std::deque<test::Child> members;
};

TEST_F(CheckpointProcesses, AKilledJobLosesNoCompleteCheckpoint) {
  const char *const wanted = std::getenv("WEFT_CHECKPOINT_KILLS"), *const seed = std::getenv("WEFT_SEED");
  const int kills = wanted != nullptr ? std::atoi(wanted) : 10;
  std::mt19937_64 random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  std::int64_t reported = -1;  // the last step that a rank reported complete
  const auto heard = [&](const std::string& line) {
    if (line.starts_with("complete "))
      reported = std::max<std::int64_t>(reported, std::stoll(line.substr(9)));
  };
  for (int kill = 0; kill <= kills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    const int ranks = 1 + static_cast<int>(random() % 4), victim = static_cast<int>(random() % ranks);
    const auto completes = random() % 4, spins = random() % 20'000'000;
    start(ranks);
    for (test::Child& member : members) {
      const std::string line = member.line();
      ASSERT_TRUE(line.starts_with("resumed ")) << line;
      EXPECT_GE(std::stoll(line.substr(8)), reported);
    }
    for (std::uint64_t i = 0; i < completes; ++i) heard(members[static_cast<std::size_t>(victim)].line());
    for (std::atomic<std::uint64_t> spun{0}; ++spun < spins;) {
    }  // any time during a save
    if (random() % 2 == 0) {  // of one rank alone: the others' saves fail, and name it
      members[static_cast<std::size_t>(victim)].kill();
      for (int rank = 0; rank < ranks; ++rank)
        for (std::string line;
             rank != victim &&
             !(line = members[static_cast<std::size_t>(rank)].line()).starts_with("failed");) {
          ASSERT_TRUE(line.starts_with("complete ")) << line;
          heard(line);
        }
    }
    for (test::Child& member : members) member.kill();
    for (test::Child& member : members)
      for (std::string line; !(line = member.line()).empty();) heard(line);
    if (HasFailure()) return;
  }
  EXPECT_GT(reported, 0);
}

}  // namespace checkpoints_process_test
}  // namespace weft::sharded::testing
