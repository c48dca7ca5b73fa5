// torch.distributed.pipelining on Gloo, in Python: torch_peer.py.
#include "bench/harness/torch_python.h"
#include "bench/pipeline/work.h"

namespace weft::bench {

std::optional<Contender> torch_peer(const Work& work) {
  if (work.schedule != "1f1b" && work.schedule != "gpipe") return std::nullopt;
  return Contender{
      "torch", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        return measure_torch_ranks(
            work.ranks, setting, "pipeline/torch_peer.py",
            {work.schedule, std::to_string(work.width), std::to_string(work.blocks),
             std::to_string(work.microbatches), std::to_string(work.rows), std::to_string(work.tokens)});
      }};
}

}  // namespace weft::bench
