// ./dev bench pipeline: steps of pipeline training, weft's executors next to PyTorch's.
#include "bench/pipeline/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Work works[] = {
      {.name = "coarse"},
      {.name = "coarse-gpipe", .schedule = "gpipe"},
      {.name = "fine", .width = 64, .microbatches = 16, .rows = 1},
      {.name = "few", .microbatches = 4},
      {.name = "few-zb-h1", .schedule = "zb-h1", .microbatches = 4},
      {.name = "coarse/4", .ranks = 4},
  };
  constexpr MakeContender peers[] = {weft_peer, weft_rpc_peer, torch_peer};
  Bench bench{.name = "pipeline", .processes = 4};
  for (const Work& work : works) {
    Case& one = bench.cases.emplace_back(Case{work.name, {}});
    for (const MakeContender peer : peers)
      if (auto contender = peer(work)) one.contenders.push_back(std::move(*contender));
  }
  return run_bench(argc, argv, std::move(bench));
}
