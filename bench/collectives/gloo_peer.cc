// Gloo, as users of PyTorch use it: torch.distributed in Python, gloo_peer.py. LibTorch contains Gloo, but
// not the headers of Gloo.
#include "bench/collectives/work.h"
#include "bench/harness/torch_python.h"

#include <cstdlib>

namespace weft::bench {

std::optional<Contender> gloo_peer(const Work& work) {
  return Contender{
      "gloo", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        const auto hosts = work.make_hosts();
        return measure_torch_ranks(work.ranks, setting, "collectives/gloo_peer.py",
                                   {name_of(work.operation), std::to_string(work.elements())}, [&](int rank) {
                                     if (!hosts) return;
                                     hosts->enter(work.host_of(rank));
                                     ::setenv("GLOO_SOCKET_IFNAME", "eth0", 1);
                                   });
      }};
}

}  // namespace weft::bench
