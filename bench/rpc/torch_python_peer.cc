// PyTorch's RPC as its users have it, in Python: torch_python_peer.py, run by a Python that has torch. Which
// one that is: $WEFT_TORCH_PYTHON, else that of .venv.
#include "bench/rpc/work.h"

#include <cstdlib>

namespace weft::bench {
namespace {

std::string python() {
  const char* const chosen = std::getenv("WEFT_TORCH_PYTHON");
  return chosen != nullptr && *chosen != '\0' ? chosen : WEFT_BENCH_SOURCE_DIR "/../.venv/bin/python";
}

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::small_tensor:
      return "small_tensor";
    case Kind::throughput:
      return "throughput";
    case Kind::bulk:
      return "bulk";
    case Kind::echo:
      return "echo";
    default:
      return "tiny";
  }
}

std::vector<std::string> command(const Work& work, const char* role, const std::string& store) {
  return {python(),
          WEFT_BENCH_SOURCE_DIR "/rpc/torch_python_peer.py",
          role,
          name_of(work.kind),
          work.wire == Wire::tcp ? "uv" : "default",
          std::to_string(work.bytes),
          store};
}

std::string seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration<double>(time).count());
}

}  // namespace

std::optional<Contender> torch_python_peer(const Work& work) {
  if (!is_plain(work.kind) || work.wire == Wire::unix_socket) return std::nullopt;
  // Its transport for one host polls; TCP is only waited for.
  const Wait wait = work.wire == Wire::tcp ? Wait::blocking : Wait::spinning;
  if (wait != work.wait) return std::nullopt;
  Notes notes = notes_of(wait, work.kind == Kind::throughput ? "rpc_async on main" : "rpc_sync on main");
  notes["transport"] = work.wire == Wire::tcp ? "uv" : "default";
  return contender(
      "torch-python", notes,
      {.serve = [=](ServerEnd& end) { end.become(command(work, "serve", scratch_path(".store"))); },
       .measure =
           [=](ClientEnd& end) {
             auto words = command(work, "measure", end.address());
             words.push_back(seconds(end.budget().warm_up));
             words.push_back(seconds(end.budget().duration));
             end.become(words);
           }});
}

}  // namespace weft::bench
