// Work: the task of each case of this bench, and the peers, one file each. bench/README.md
// describes the cases. A step is zero_grad, and forward and backward of all micro-batches; the optimizer is
// not part of a step. Values.
#pragma once

#include "bench/harness/ranks.h"

#include <cstdint>
#include <optional>
#include <string>

namespace weft::bench {

enum class Model {
  transformer,  // a chain of blocks, split evenly over the stages
  // The model of PyTorch's tutorial "Distributed Pipeline Parallelism Using RPC", with its two stages.
  resnet50,
  scale,  // each layer multiplies its input by a parameter, to measure the cost of the executor itself
};

struct Work {
  std::string name;
  std::string schedule = "1f1b";  // a value of `weft schedule --type`
  Model model = Model::transformer;
  std::int64_t width = 256;
  int blocks = 8, ranks = 2, microbatches = 8;
  std::int64_t rows = 4, tokens = 64;  // the size of a micro-batch
};

// The model has a quarter of the tutorial's channels, so that a step takes only seconds on a core.
inline constexpr std::int64_t tutorial_image = 128, tutorial_width = 16, tutorial_classes = 1000;

// Each function returns nullopt if the work does not apply to the peer.
using MakeContender = std::optional<Contender> (*)(const Work&);
std::optional<Contender> weft_peer(const Work& work);      // GroupPipeline
std::optional<Contender> weft_rpc_peer(const Work& work);  // Pipeline; rank 0 is also the driver
// LocalPipeline: one process, a thread for each rank.
std::optional<Contender> weft_local_peer(const Work& work);
// Remote calls, with a pass for each micro-batch. An additional rank is the driver.
std::optional<Contender> weft_calls_peer(const Work& work);
std::optional<Contender> torch_peer(const Work& work);      // torch.distributed.pipelining in Python, on Gloo
std::optional<Contender> torch_rpc_peer(const Work& work);  // the tutorial's program, in Python

}  // namespace weft::bench
