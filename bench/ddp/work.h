// Work: the task of each case of this bench, and the peers, one file each. bench/README.md
// describes the cases. Values.
#pragma once

#include "bench/harness/hosts.h"
#include "bench/harness/ranks.h"

#include <memory>
#include <optional>
#include <string>

namespace weft::bench {

enum class Model { mlp25m, resnet18, embedding, transformer };
// gradients: a step is zero_grad, forward and backward. fsdp, zero1: a step includes the step of an AdamW,
// sharded by that method. checkpoint: the time for which a background save blocks training.
enum class Task { gradients, fsdp, zero1, checkpoint };

struct Work {
  std::string name;
  Model model = Model::mlp25m;
  int ranks = 2;
  bool tcp = false;       // false: shared memory, if the peer supports it
  bool keep_grad = true;  // calls zero_grad(false), so that gradients keep their memory
  bool gpu = false;       // all ranks share one GPU, and each step waits until the GPU has completed it
  int batch = 16;         // the batch size of the ResNet-18
  // The bandwidth of each rank, in the notation of tc: "1gbit". Each rank then runs on a separate host.
  // Empty: all ranks run on one host, without a limit.
  std::string rate = {};
  bool loaded = false;  // other programs compute on each core
  Task task = Task::gradients;

  bool sharded() const { return task == Task::fsdp || task == Task::zero1; }

  // Returns the hosts, which must live as long as the measurement. nullptr: all ranks run on one host.
  std::unique_ptr<Hosts> make_hosts() const {
    return rate.empty() ? nullptr : std::make_unique<Hosts>(ranks, rate);
  }
  // Returns the other programs, which must live as long as the measurement.
  std::vector<std::unique_ptr<Process>> make_load() const {
    return loaded ? compute_on_each_core() : std::vector<std::unique_ptr<Process>>{};
  }
};

bool has_gpu();
// Call it in a rank's process before the process uses CUDA. NCCL then considers the ranks as ranks of
// different hosts. This is necessary because NCCL does not permit two ranks of one host on one GPU.
void share_gpu(int rank);

const char* name_of(Model model);

// Each function returns nullopt if the work does not apply to the peer. Only the functions in the last two
// blocks apply to other tasks than `gradients`.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> weft_group_peer(const Work& work);  // Overlap::group
std::optional<Contender> weft_after_peer(const Work& work);  // Overlap::after
std::optional<Contender> local_peer(const Work& work);       // the same ranks, without communication
std::optional<Contender> all_reduce_peer(const Work& work);  // only the all-reduces of the buckets
std::optional<Contender> torch_peer(const Work& work);       // PyTorch in Python, on Gloo
std::optional<Contender> torch_view_peer(const Work& work);  // the same with gradient_as_bucket_view
// Peers of the tasks with an optimizer: weft with sharding, weft with ZeRO-2, weft's DistributedDataParallel
// without sharding, and PyTorch's fully_shard or ZeroRedundancyOptimizer.
std::optional<Contender> weft_sharded_peer(const Work& work);
std::optional<Contender> weft_zero2_peer(const Work& work);
std::optional<Contender> weft_whole_peer(const Work& work);
std::optional<Contender> torch_sharded_peer(const Work& work);
// Peers of Task::checkpoint.
std::optional<Contender> weft_checkpoint_peer(const Work& work);
std::optional<Contender> memcpy_peer(const Work& work);

}  // namespace weft::bench
