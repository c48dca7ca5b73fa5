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

std::vector<std::string> command(const Work& work, const char* role, const std::string& store) {
  return torch_command("rpc/torch_python_peer.py",
                       {role, name_of(work.kind), work.wire == Wire::tcp ? "uv" : "default",
                        std::to_string(work.bytes), store});
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
