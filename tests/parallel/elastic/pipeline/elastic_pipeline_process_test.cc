// Two pipelines of two stages, whose workers are processes. A worker is killed, is stopped or hangs. The
// others continue with one pipeline, and their parameters are those of one process.
#include "tests/parallel/elastic/pipeline/pipelines.h"
#include "tests/support/child.h"

namespace weft::elastic {
namespace elastic_pipeline_process_test {

using namespace pipelines;

struct Case {
  const char* how;
  int victim;
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.how << each.victim; }

class ElasticPipelineProcesses : public ElasticPipelines, public ::testing::WithParamInterface<Case> {
 protected:
  static constexpr std::chrono::nanoseconds detection = test::short_lease;

  std::unique_ptr<test::Child> fork(const std::string& name, int number) {
    return std::make_unique<test::Child>([&, number](int lines) {
      try {
        Worker worker(files, name, static_cast<std::size_t>(number), detection);
        worker.before_step = [&](std::int64_t step, const Group&) {
          if (number != GetParam().victim || step != 7) return;
          test::say(lines, "waits");
          while (true) ::pause();
        };
        start(worker, {.workers = {.min = 2, .start = 4}, .hang = detection});
        end(worker);
        const std::string difference = Replay().difference(worker.model, 1e-10);
        test::say(lines, difference.empty()
                             ? "finished, pipelines: " + std::to_string(worker.model.pipelines())
                             : difference + " differs");
      } catch (const std::exception& error) {
        test::say(lines, std::string("failed: ") + error.what());
      }
    });
  }

  test::FileJobStore files;
};
INSTANTIATE_TEST_SUITE_P(Ends, ElasticPipelineProcesses,
                         ::testing::Values(Case{"killed", 0}, Case{"killed", 3}, Case{"stopped", 1},
                                           Case{"stopped", 2}, Case{"hangs", 0}, Case{"hangs", 3}),
                         [](const auto& info) { return info.param.how + std::to_string(info.param.victim); });

TEST_P(ElasticPipelineProcesses, ContinueWithoutAStage) {
  const auto [how, victim] = GetParam();
  std::map<int, std::unique_ptr<test::Child>> processes;
  for (int number = 0; number < 4; ++number) processes[number] = fork("w" + std::to_string(number), number);
  EXPECT_EQ(processes[victim]->line(), "waits");
  if (how == std::string("killed")) processes[victim]->kill();
  if (how == std::string("stopped")) processes[victim]->stop();
  for (const auto& [number, process] : processes)
    if (number != victim) {
      EXPECT_EQ(process->line(), "finished, pipelines: 1") << number;
    }
}

}  // namespace elastic_pipeline_process_test
}  // namespace weft::elastic
