// PyTorch's DistributedDataParallel on Gloo or NCCL, in Python: torch_peer.py, run by a Python that can
// import torch: $WEFT_TORCH_PYTHON, else that of .venv.
#include "bench/ddp/work.h"

#include <cstdlib>
#include <filesystem>

namespace weft::bench {
namespace {

std::string python() {
  const char* const chosen = std::getenv("WEFT_TORCH_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : WEFT_BENCH_SOURCE_DIR "/../.venv/bin/python";
}

std::string seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration<double>(time).count());
}

Contender contender(const char* name, const Work& work, bool view) {
  return Contender{
      name, {{"caller", "Python, main"}, {"transport", "tcp"}}, [work, view](const Setting& setting) {
        const std::string store = scratch_path(".gloo");
        const auto hosts = work.make_hosts();
        const Outcome outcome = measure_ranks(work.ranks, setting, [&](RankEnd& end) {
          if (hosts) {
            hosts->enter(end.rank());
            setenv("GLOO_SOCKET_IFNAME", "eth0", 1);
          }
          if (work.gpu) share_gpu(end.rank());
          end.become({python(), WEFT_BENCH_SOURCE_DIR "/ddp/torch_peer.py", name_of(work.model),
                      std::to_string(end.rank()), std::to_string(work.ranks), store,
                      seconds(end.budget().warm_up), seconds(end.budget().duration), view ? "view" : "copy",
                      work.keep_grad ? "keep" : "fresh", work.gpu ? "cuda:0" : "cpu",
                      std::to_string(work.batch)});
        });
        std::filesystem::remove(store);
        return outcome;
      }};
}

}  // namespace

std::optional<Contender> torch_peer(const Work& work) { return contender("torch", work, false); }
std::optional<Contender> torch_view_peer(const Work& work) { return contender("torch_view", work, true); }

}  // namespace weft::bench
