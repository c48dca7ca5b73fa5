// PyTorch's DistributedDataParallel on Gloo or NCCL, in Python: torch_peer.py.
#include "bench/ddp/work.h"
#include "bench/harness/torch_python.h"

#include <cstdlib>

namespace weft::bench {
namespace {

Contender contender(const char* name, const Work& work, bool view) {
  return Contender{name, {{"caller", "Python, main"}, {"transport", "tcp"}}, [=](const Setting& setting) {
                     const auto hosts = work.make_hosts();
                     return measure_torch_ranks(
                         work.ranks, setting, "ddp/torch_peer.py",
                         {name_of(work.model), view ? "view" : "copy", work.keep_grad ? "keep" : "fresh",
                          work.gpu ? "cuda:0" : "cpu", std::to_string(work.batch)},
                         [&](int rank) {
                           if (hosts) {
                             hosts->enter(rank);
                             setenv("GLOO_SOCKET_IFNAME", "eth0", 1);
                           }
                           if (work.gpu) share_gpu(rank);
                         });
                   }};
}

}  // namespace

std::optional<Contender> torch_peer(const Work& work) { return contender("torch", work, false); }
std::optional<Contender> torch_view_peer(const Work& work) { return contender("torch_view", work, true); }

}  // namespace weft::bench
