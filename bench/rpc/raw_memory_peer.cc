// The lower bound for shared memory: the processes exchange a number in each direction, each in a separate
// cache line.
#include "bench/rpc/socket.h"
#include "bench/rpc/turn.h"

#include <new>

namespace weft::bench {
namespace {

struct alignas(64) Line {
  Turn turn;
  bool last = false;
  std::uint64_t value = 0;
};
static_assert(sizeof(Line) == 64);

struct Lines {
  Line request, reply;
};

void serve(Lines& lines, Wait wait, ServerEnd& end) {
  end.announce("memory");
  for (std::uint32_t call = 1;; ++call) {
    lines.request.turn.await(call, wait);
    if (lines.request.last) break;
    lines.reply.value = lines.request.value;
    lines.reply.turn.advance(call, wait);
  }
  end.wait_for_client();
}

void measure(Lines& lines, Wait wait, ClientEnd& end) {
  LatencyMeter meter(end.budget());
  std::uint32_t call = 0;
  do {
    meter.begin();
    lines.request.value = ++call;
    lines.request.turn.advance(call, wait);
    lines.reply.turn.await(call, wait);
    expect_answer(lines.reply.value == call);
  } while (meter.end());
  lines.request.last = true;
  lines.request.turn.advance(call + 1, wait);
  end.report(meter.figures());
}

}  // namespace

std::optional<Contender> raw_memory_peer(const Work& work) {
  if (work.wire != Wire::shared_memory) return std::nullopt;
  return Contender{"raw", notes_of(work.wait, "main"), [wait = work.wait](const Setting& setting) {
                     const Memory memory(sizeof(Lines), Memory::Kind::shared);  // shared by both processes
                     auto& lines = *new (memory.data()) Lines;
                     return measure_pair({.serve = [&](ServerEnd& end) { serve(lines, wait, end); },
                                          .measure = [&](ClientEnd& end) { measure(lines, wait, end); }},
                                         setting);
                   }};
}

}  // namespace weft::bench
