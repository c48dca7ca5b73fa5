// ./dev bench ddp: compares steps of data parallel training with weft, with PyTorch, and on unconnected
// ranks.
#include "bench/ddp/work.h"

#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace weft::bench {

const char* name_of(Model model) {
  constexpr const char* names[] = {"mlp25m", "resnet18", "embedding", "transformer"};
  return names[static_cast<std::size_t>(model)];
}

bool has_gpu() { return access("/dev/nvidia0", F_OK) == 0; }

void share_gpu(int rank) {
  setenv("NCCL_HOSTID", ("weft-bench-" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // has an effect since NCCL 2.30
}

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  std::vector<Work> works{
      {"mlp25m/2", Model::mlp25m, 2},
      {"mlp25m/4", Model::mlp25m, 4},
      {"mlp25m-tcp/2", Model::mlp25m, 2, true},
      {.name = "mlp25m-load/2", .loaded = true},
      {.name = "mlp25m-tcp-load/2", .tcp = true, .loaded = true},
      {"mlp25m-fresh/2", Model::mlp25m, 2, false, false},
      {"resnet18/2", Model::resnet18, 2},
      {.name = "resnet18-load/2", .model = Model::resnet18, .loaded = true},
      {.name = "resnet18-1gbit/2", .model = Model::resnet18, .batch = 32, .rate = "1gbit"},
      {"embedding/2", Model::embedding, 2},
      {.name = "fsdp/2", .model = Model::transformer, .task = Task::fsdp},
      {.name = "zero1/2", .model = Model::transformer, .task = Task::zero1},
      {.name = "checkpoint-64MiB/2", .task = Task::checkpoint},
      {"mlp25m-gpu/1", Model::mlp25m, 1, false, true, true},
      {"mlp25m-gpu/2", Model::mlp25m, 2, false, true, true},
      {"resnet18-gpu/1", Model::resnet18, 1, false, true, true},
      {"resnet18-gpu/2", Model::resnet18, 2, false, true, true},
  };
  constexpr MakeContender peers[] = {
      weft_peer,          weft_group_peer,      weft_after_peer,   local_peer,      all_reduce_peer,
      torch_peer,         torch_view_peer,      weft_sharded_peer, weft_zero2_peer, weft_whole_peer,
      torch_sharded_peer, weft_checkpoint_peer, memcpy_peer};
  Bench bench{.name = "ddp", .processes = 4};
  if (!has_gpu()) std::erase_if(works, [](const Work& work) { return work.gpu; });
  add_cases(bench, works, peers);
  return run_bench(argc, argv, std::move(bench));
}
