// torch.distributed.pipelining on Gloo, and the program of PyTorch's tutorial "Distributed Pipeline
// Parallelism Using RPC": torch_peer.py and torch_rpc_peer.py.
#include "bench/harness/torch_python.h"
#include "bench/pipeline/work.h"

namespace weft::bench {

std::optional<Contender> torch_peer(const Work& work) {
  if (work.model != Model::transformer || (work.schedule != "1f1b" && work.schedule != "gpipe"))
    return std::nullopt;
  return Contender{
      "torch", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        return measure_torch_ranks(
            work.ranks, setting, "pipeline/torch_peer.py",
            {work.schedule, std::to_string(work.width), std::to_string(work.blocks),
             std::to_string(work.microbatches), std::to_string(work.rows), std::to_string(work.tokens)});
      }};
}

std::optional<Contender> torch_rpc_peer(const Work& work) {
  if (work.model != Model::resnet50) return std::nullopt;
  return Contender{
      "torch-rpc", {{"caller", "Python, main"}, {"transport", "default"}}, [work](const Setting& setting) {
        return measure_torch_ranks(
            work.ranks + 1, setting, "pipeline/torch_rpc_peer.py",
            {std::to_string(work.microbatches), std::to_string(work.rows), std::to_string(tutorial_image),
             std::to_string(tutorial_width), std::to_string(tutorial_classes)});
      }};
}

}  // namespace weft::bench
