// ./dev bench ddp: steps of data parallel training, weft's next to PyTorch's and to unconnected ranks.
#include "bench/ddp/work.h"

#include <unistd.h>

#include <filesystem>

namespace weft::bench {

const char* name_of(Model model) {
  constexpr const char* names[] = {"mlp25m", "resnet18", "embedding"};
  return names[static_cast<std::size_t>(model)];
}

std::string scratch_path(const std::string& suffix) {
  return std::filesystem::temp_directory_path() / ("weft_bench_" + std::to_string(getpid()) + suffix);
}

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  const Work works[] = {
      {"mlp25m/2", Model::mlp25m, 2},           {"mlp25m/4", Model::mlp25m, 4},
      {"mlp25m-tcp/2", Model::mlp25m, 2, true}, {"mlp25m-fresh/2", Model::mlp25m, 2, false, false},
      {"resnet18/2", Model::resnet18, 2},       {"embedding/2", Model::embedding, 2},
  };
  constexpr MakeContender peers[] = {weft_peer,       weft_group_peer, weft_after_peer, local_peer,
                                     all_reduce_peer, torch_peer,      torch_view_peer};
  Bench bench{.name = "ddp", .processes = 4};
  for (const Work& work : works) {
    Case& one = bench.cases.emplace_back(Case{work.name, {}});
    for (const MakeContender peer : peers)
      if (auto contender = peer(work)) one.contenders.push_back(std::move(*contender));
  }
  return run_bench(argc, argv, std::move(bench));
}
