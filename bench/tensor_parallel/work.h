// Work: the task of each case of this bench, and the peers, one file each. bench/README.md
// describes the cases. A step is zero_grad, forward and backward of one transformer block; the optimizer is
// not part of a step. Values.
#pragma once

#include "bench/harness/ranks.h"

#include <cstdint>
#include <optional>
#include <string>

namespace weft::bench {

inline constexpr int ranks = 2;
inline constexpr std::int64_t rows = 4, tokens = 64, head_width = 64;

struct Work {
  std::string name;
  std::int64_t width = 0;
  // If true, rank 1 takes part in the collectives of the step, but computes nothing, and both ranks may run
  // on any core. So a core is free for the threads that communicate.
  bool free = false;
};

// Each function returns nullopt if the work does not apply to the peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);
std::optional<Contender> local_peer(const Work& work);  // the whole block in one process
// The parts of both ranks at the same time, without communication.
std::optional<Contender> parts_peer(const Work& work);
std::optional<Contender> all_reduce_peer(const Work& work);  // only the all-reduces of the input gradients
std::optional<Contender> torch_peer(
    const Work& work);  // torch.distributed.tensor.parallel in Python, on Gloo

}  // namespace weft::bench
