// PyTorch's DistributedDataParallel on Gloo or NCCL, in Python: torch_peer.py.
#include "bench/ddp/work.h"
#include "bench/harness/torch_python.h"

#include <cstdlib>

namespace weft::bench {
namespace {

// form: "view" or "copy" for Task::gradients; "fsdp" or "zero1" for a task with an optimizer.
Contender contender(const char* name, const Work& work, const char* form) {
  return Contender{name, {{"caller", "Python, main"}, {"transport", "tcp"}}, [=](const Setting& setting) {
                     const auto hosts = work.make_hosts();
                     const auto load = work.make_load();
                     return measure_torch_ranks(work.ranks, setting, "ddp/torch_peer.py",
                                                {name_of(work.model), form, work.keep_grad ? "keep" : "fresh",
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

std::optional<Contender> torch_peer(const Work& work) {
  if (work.task != Task::gradients) return std::nullopt;
  return contender("torch", work, "copy");
}
std::optional<Contender> torch_view_peer(const Work& work) {
  if (work.task != Task::gradients) return std::nullopt;
  return contender("torch_view", work, "view");
}
std::optional<Contender> torch_sharded_peer(const Work& work) {
  if (!work.sharded()) return std::nullopt;
  return contender("torch", work, work.task == Task::fsdp ? "fsdp" : "zero1");
}

}  // namespace weft::bench
