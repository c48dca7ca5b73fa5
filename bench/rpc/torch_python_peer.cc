// PyTorch's RPC in Python, as users call it: torch_python_peer.py.
#include "bench/harness/torch_python.h"
#include "bench/rpc/work.h"

namespace weft::bench {
namespace {

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

}  // namespace

std::optional<Contender> torch_python_peer(const Work& work) {
  if (!is_plain(work.kind) || work.wire == Wire::unix_socket) return std::nullopt;
  // PyTorch's transport for one host polls. Its TCP transport blocks.
  const Wait wait = work.wire == Wire::tcp ? Wait::blocking : Wait::spinning;
  if (wait != work.wait) return std::nullopt;
  Notes notes = notes_of(wait, work.kind == Kind::throughput ? "rpc_async on main" : "rpc_sync on main");
  notes["transport"] = work.wire == Wire::tcp ? "uv" : "default";
  return contender(
      "torch-python", notes,
      torch_pair("rpc/torch_python_peer.py", {name_of(work.kind), work.wire == Wire::tcp ? "uv" : "default",
                                              std::to_string(work.bytes)}));
}

}  // namespace weft::bench
