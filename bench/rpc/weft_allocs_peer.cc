// allocs/tiny: the number of allocations of a tiny call. A separate program (allocs/main.cc) counts them, so
// that no other measurement runs with a counting malloc.
#include "bench/rpc/work.h"

namespace weft::bench {
namespace {

constexpr const char* program = "bench_rpc_allocs";

}  // namespace

std::optional<Contender> weft_allocs_peer(const Work& work) {
  if (work.kind != Kind::allocations) return std::nullopt;
  return contender(
      "weft", notes_of(Wait::blocking, "coroutine on the loop"),
      {.serve = [](ServerEnd& end) { end.become({program_path(program), "serve"}); },
       .measure = [](ClientEnd& end) { end.become({program_path(program), "measure", end.address()}); }});
}

}  // namespace weft::bench
