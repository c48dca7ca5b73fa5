// ./dev bench pipeline: compares steps of pipeline training with weft's executors and with PyTorch's.
#include "bench/pipeline/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  std::vector<Work> works{
      {.name = "coarse"},
      {.name = "coarse-gpipe", .schedule = "gpipe"},
      {.name = "fine", .width = 64, .microbatches = 16, .rows = 1},
      {.name = "few", .microbatches = 4},
      {.name = "few-zb-h1", .schedule = "zb-h1", .microbatches = 4},
      {.name = "coarse/4", .ranks = 4},
      {.name = "actions/2", .model = Model::scale, .blocks = 2, .microbatches = 64, .rows = 1},
  };
  for (const int splits : {1, 2, 4, 8})
    works.push_back({.name = "tutorial-resnet50/" + std::to_string(splits),
                     .schedule = "gpipe",
                     .model = Model::resnet50,
                     .microbatches = splits,
                     .rows = 120 / splits});
  constexpr MakeContender peers[] = {weft_peer,       weft_rpc_peer, weft_local_peer,
                                     weft_calls_peer, torch_peer,    torch_rpc_peer};
  Bench bench{.name = "pipeline", .processes = 4};
  add_cases(bench, works, peers);
  return run_bench(argc, argv, std::move(bench));
}
