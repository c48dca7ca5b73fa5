// ./dev bench elastic: measures the seconds until training resumes after a worker has died or joined, with
// weft and with torchelastic, and the cost of a commit.
#include "bench/elastic/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Size sizes[] = {{"commit/3MiB", 4, 256}, {"commit/48MiB", 256, 128}, {"commit/288MiB", 6, 2048}};
  Bench bench{.name = "elastic", .processes = 0};  // the system chooses the cores for all peers
  bench.cases.push_back(
      {"kill/4", {kill_contender("weft", 4, weft_job), kill_contender("torchelastic", 4, torchelastic_job)}});
  bench.cases.push_back(
      {"join/3", {join_contender("weft", 3, weft_job), join_contender("torchelastic", 3, torchelastic_job)}});
  for (const Size& size : sizes)
    bench.cases.push_back({size.name, {commit_contender(size), memcpy_contender(size)}});
  return run_bench(argc, argv, std::move(bench));
}
