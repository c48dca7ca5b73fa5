// ./dev bench weights: compares the bandwidth at which weft and Python load a file of 2 GiB into a module.
#include "bench/weights/work.h"

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Work works[] = {
      {.name = "safetensors/2GiB", .extension = "safetensors"},
      {.name = "safetensors-cold/2GiB", .extension = "safetensors", .cold = true},
      {.name = "torch/2GiB", .extension = "pt"},
      {.name = "torch-cold/2GiB", .extension = "pt", .cold = true},
  };
  constexpr MakeContender peers[] = {weft_peer, weft_unchecked_peer, torch_peer};
  Bench bench{.name = "weights", .processes = 1};
  add_cases(bench, works, peers);
  return run_bench(argc, argv, std::move(bench));
}
