// Work: the task of each case of this bench, and the peers, one file each. docs/benchmarks.md describes the
// cases. A step is zero_grad, and forward and backward of all micro-batches; the optimizer is not part of it.
// Values.
#pragma once

#include "bench/harness/ranks.h"

#include <cstdint>
#include <optional>
#include <string>

namespace weft::bench {

// A chain of transformer blocks, split evenly over the stages.
struct Work {
  std::string name;
  std::string schedule = "1f1b";  // as `weft schedule --type`
  std::int64_t width = 256;
  int blocks = 8, ranks = 2, microbatches = 8;
  std::int64_t rows = 4, tokens = 64;  // of a micro-batch
};

// Each gives nothing if the work does not concern that peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);      // GroupPipeline
std::optional<Contender> weft_rpc_peer(const Work& work);  // Pipeline; rank 0 is also the driver
std::optional<Contender> torch_peer(const Work& work);     // torch.distributed.pipelining in Python, on Gloo

}  // namespace weft::bench
