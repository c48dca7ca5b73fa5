// torch.distributed.pipelining on Gloo, in Python: torch_peer.py, run by a Python that can import torch:
// $WEFT_TORCH_PYTHON, else that of .venv.
#include "bench/pipeline/work.h"

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

std::optional<Contender> torch_peer(const Work& work) {
  if (work.schedule != "1f1b" && work.schedule != "gpipe") return std::nullopt;
  return Contender{
      "torch", {{"caller", "Python, main"}, {"transport", "tcp"}}, [work](const Setting& setting) {
        const std::string store = scratch_path(".gloo");
        const Outcome outcome = measure_ranks(work.ranks, setting, [&](RankEnd& end) {
          end.become(
              {python(), WEFT_BENCH_SOURCE_DIR "/pipeline/torch_peer.py", work.schedule,
               std::to_string(end.rank()), std::to_string(work.ranks), store, seconds(end.budget().warm_up),
               seconds(end.budget().duration), std::to_string(work.width), std::to_string(work.blocks),
               std::to_string(work.microbatches), std::to_string(work.rows), std::to_string(work.tokens)});
        });
        std::filesystem::remove(store);
        return outcome;
      }};
}

}  // namespace weft::bench
