// Workers as processes: one of three is killed, the others train on in their processes, another one joins.
// The losses are those of one process with the samples that were logged.
#include <weft/rpc/store/store.h>

#include <deque>
#include <sstream>

#include "tests/parallel/elastic/training.h"
#include "tests/support/child.h"

namespace weft::elastic {
namespace run_process_test {

using namespace testing;

// "step STEP EPOCH GENERATION RANK RANKS LOSS INDEX..."
std::string to_line(const Step& step) {
  std::ostringstream line;
  line.precision(17);
  line << "step " << step.step << ' ' << step.epoch << ' ' << step.generation << ' ' << step.rank << ' '
       << step.ranks << ' ' << step.loss;
  for (const std::size_t index : step.indices) line << ' ' << index;
  return line.str();
}
Step step_of(const std::string& text) {
  std::istringstream line(text);
  std::string word;
  Step step;
  line >> word >> step.step >> step.epoch >> step.generation >> step.rank >> step.ranks >> step.loss;
  for (std::size_t index = 0; line >> index;) step.indices.push_back(index);
  return step;
}

constexpr std::int64_t killed_at = 7, joined_at = 12;

class ElasticProcesses : public ::testing::TestWithParam<int> {
 protected:
  void start(const std::string& name, std::size_t number, bool victim) {
    children.emplace_back([&, number, victim](int pipe) {
      try {
        rpc::Agent agent(worker_options(store, name, number), training_layers());
        rpc::Job job(agent);
        Trained training(number);
        std::uint64_t generation = 0;
        training.log = [pipe](const Step& step) { test::say(pipe, to_line(step)); };
        training.before_step = [&](std::int64_t step, const Group& group) {
          if (victim && step == killed_at) {
            test::say(pipe, "kill me");
            while (true) ::pause();
          }
          if (step == joined_at && group.size() == 2)  // until the third one can join
            job.store()->get("elastic/train/ready/dora", {.timeout = std::chrono::seconds{60}}).get();
        };
        const auto outcome =
            run(job, training.state, [&](const Group& group) { training.train(group, generation); },
                {.workers = {.min = 2, .start = 3}, .on_change = [&](const Change& change) {
                   generation = change.generation;
                   std::string members;
                   for (const std::string& member : change.group.members()) members += " " + member;
                   test::say(pipe, "members" + members);
                 }});
        test::say(pipe, outcome == Outcome::finished ? "finished" : "left");
      } catch (const std::exception& error) {
        test::say(pipe, std::string("failed: ") + error.what());
      }
    });
  }
  // Reads what a worker says, up to that line.
  void read(std::size_t child, const std::string& until) {
    while (true) {
      const std::string line = children[child].line();
      if (line.starts_with("step ")) log.add(step_of(line));
      if (line == until) return;
      if (line.empty() || line.starts_with("failed")) {
        ADD_FAILURE() << "worker " << child << ": " << line;
        return;
      }
    }
  }

  test::FileJobStore store;
  std::deque<test::Child> children;
  Log log;
};
INSTANTIATE_TEST_SUITE_P(Victims, ElasticProcesses, ::testing::Values(0, 2),
                         [](const auto& info) { return "rank" + std::to_string(info.param); });

TEST_P(ElasticProcesses, SurviveAKillAndTakeANewWorkerIn) {
  const auto victim = static_cast<std::size_t>(GetParam());
  const std::vector<std::string> names{"anna", "bert", "cleo"};
  for (std::size_t i = 0; i < 3; ++i) start(names[i], i, i == victim);
  read(victim, "kill me");
  children[victim].kill();
  const std::size_t first = victim == 0 ? 1 : 0, second = victim == 2 ? 1 : 2;
  // A generation may be formed again: a worker that proposes it may not know of the new member yet.
  const std::string two = "members " + names[first] + " " + names[second];
  read(first, two);
  read(second, two);
  start("dora", 3, false);
  for (const std::size_t child : {first, second, std::size_t{3}}) {
    read(child, two + " dora");
    read(child, "finished");
  }
  Net model(0);
  log.expect_replay(model);
}

}  // namespace run_process_test
}  // namespace weft::elastic
