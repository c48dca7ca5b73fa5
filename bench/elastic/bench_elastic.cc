// ./dev bench elastic: measures the seconds until training resumes after a worker has failed or joined, the
// steps that a job makes while workers fail, and the cost of a commit.
#include "bench/elastic/work.h"

#include <csignal>

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Size sizes[] = {{"commit/3MiB", 4, 256}, {"commit/48MiB", 256, 128}, {"commit/288MiB", 6, 2048}};
  Bench bench{.name = "elastic", .processes = 0};  // the system chooses the cores for all peers
  const std::pair<std::string, int> failures[] = {
      {"kill/4", SIGKILL}, {"stop/4", SIGSTOP}, {"hang/4", SIGUSR1}, {"cut/4", cut}};
  const std::pair<std::string, JobOptions> times[] = {{"", {}}, {"/500ms", {.detection = "0.5"}}};
  for (const auto& [name, signal] : failures)
    for (const auto& [time, options] : times)
      bench.cases.push_back({name + time,
                             {failure_contender("weft", weft_job, options, signal),
                              failure_contender("torchft", torchft_job, options, signal)}});
  // torchelastic detects only the end of a process.
  bench.cases.front().contenders.push_back(failure_contender("torchelastic", torchelastic_job, {}, SIGKILL));
  for (const auto& [time, options] : times) {
    const std::chrono::milliseconds half{options.detection.empty() ? 2500 : 250};
    bench.cases.push_back({"pause/4" + time,
                           {pause_contender("weft", weft_job, options, half),
                            pause_contender("torchft", torchft_job, options, half)}});
  }
  const JobOptions join{.workers = 3, .join = true};
  bench.cases.push_back(
      {"join/3",
       {join_contender("weft", weft_job, join), join_contender("torchelastic", torchelastic_job, join)}});
  for (const std::string kind : {"large", "later"}) {
    JobOptions large = join;
    large.kind = kind;
    bench.cases.push_back(
        {"join/1GiB/" + kind,
         {join_contender("weft", weft_job, large), copy_contender("memcpy", std::size_t{1} << 30, false),
          copy_contender("memcpy-new", std::size_t{1} << 30, true)}});
  }
  for (const auto& [time, options] : times)
    bench.cases.push_back(
        {"storm" + time,
         {storm_contender("weft", weft_job, options), storm_contender("torchft", torchft_job, options)}});
  for (const Size& size : sizes)
    bench.cases.push_back({size.name, {commit_contender(size), memcpy_contender(size)}});
  return run_bench(argc, argv, std::move(bench));
}
