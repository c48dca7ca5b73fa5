// torch.distributed.tensor.parallel on Gloo, in Python: torch_peer.py.
#include "bench/harness/torch_python.h"
#include "bench/tensor_parallel/work.h"

namespace weft::bench {

std::optional<Contender> torch_peer(const Work& work) {
  if (work.free) return std::nullopt;
  return Contender{
      "torch", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        return measure_torch_ranks(ranks, setting, "tensor_parallel/torch_peer.py",
                                   {std::to_string(work.width), std::to_string(rows), std::to_string(tokens),
                                    std::to_string(head_width)});
      }};
}

}  // namespace weft::bench
