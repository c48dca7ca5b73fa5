// Gloo, as PyTorch's users have it: torch.distributed in Python, gloo_peer.py, run by a Python that has
// torch. Which one that is: $WEFT_TORCH_PYTHON, else that of .venv. LibTorch has Gloo without its headers.
#include "bench/collectives/work.h"

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

}  // namespace

std::optional<Contender> gloo_peer(const Work& work) {
  return Contender{
      "gloo", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        const std::string store = scratch_path(".gloo");
        const auto hosts = work.make_hosts();
        const Outcome outcome = measure_ranks(work.ranks, setting, [&](RankEnd& end) {
          if (hosts) {
            hosts->enter(work.host_of(end.rank()));
            ::setenv("GLOO_SOCKET_IFNAME", "eth0", 1);
          }
          end.become({python(), WEFT_BENCH_SOURCE_DIR "/collectives/gloo_peer.py", name_of(work.operation),
                      std::to_string(work.elements()), std::to_string(end.rank()), std::to_string(work.ranks),
                      store, seconds(end.budget().warm_up), seconds(end.budget().duration)});
        });
        std::filesystem::remove(store);
        return outcome;
      }};
}

}  // namespace weft::bench
