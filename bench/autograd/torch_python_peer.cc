// PyTorch's distributed autograd in Python, as users call it: torch_python_peer.py.
#include "bench/autograd/work.h"
#include "bench/harness/torch_python.h"

namespace weft::bench {
namespace {

std::string name_of(Kind kind) {
  switch (kind) {
    case Kind::fan_out:
      return "fan_out";
    case Kind::passes:
      return "passes";
    case Kind::to_here:
      return "to_here";
    case Kind::churn:
      return "churn";
    case Kind::lookup:
      return "lookup";
    case Kind::update:
      return "update";
    default:
      return "chain";
  }
}

}  // namespace

std::optional<Contender> torch_python_peer(const Work& work) {
  if (work.kind == Kind::live || work.kind == Kind::wide) return std::nullopt;
  if (work.half_unused) return std::nullopt;  // the backward would wait forever
  const std::string caller = work.kind == Kind::passes ? "64 threads" : "rpc_sync on main";
  return contender(
      "torch-python", {{"wait", "blocking"}, {"caller", caller}, {"transport", "uv"}},
      torch_pair("autograd/torch_python_peer.py",
                 {name_of(work.kind), std::to_string(work.workers),
                  std::to_string(work.is_table() ? static_cast<std::size_t>(work.rows) : work.size),
                  std::to_string(work.skewed ? skew : 1)}));
}

}  // namespace weft::bench
