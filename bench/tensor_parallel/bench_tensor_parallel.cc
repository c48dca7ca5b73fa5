// ./dev bench tensor_parallel: compares steps of a transformer block that is split over ranks, with weft and
// with PyTorch, and steps of the whole block on one core.
#include "bench/tensor_parallel/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Work works[] = {
      {.name = "block1024/2", .width = 1024},
      {.name = "block256/2", .width = 256},
      {.name = "block1024-free/2", .width = 1024, .free = true},
      {.name = "block256-free/2", .width = 256, .free = true},
  };
  constexpr MakeContender peers[] = {weft_peer, local_peer, parts_peer, all_reduce_peer, torch_peer};
  Bench bench{.name = "tensor_parallel", .processes = ranks};
  add_cases(bench, works, peers);
  return run_bench(argc, argv, std::move(bench));
}
