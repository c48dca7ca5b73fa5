// WaitGraph: which call waits for which, across agents, from what each of them tells of its calls
// (weft.pending).
//
// A call waits for the calls that its handler makes in its name (peer.with(call)); one that is queued waits
// for what runs on the same object, for those that its method's limit has let in, or, where all handler
// threads are taken, for those that run. What an agent does not know (a handler that waits for something
// else) is in no graph, and what changed while the agents were asked may be missing or doubled: what hangs is
// still there when asked again. Thread-safety: values.
#pragma once

#include <weft/rpc/agent/calls_in_flight.h>

#include <string>
#include <vector>

#include "tools/weft/json_text.h"

namespace weft::tool {

struct WaitGraph {
  struct Call {
    rpc::CallName name;
    std::string text;                    // "market.last on bert, 3.2 s, running": printable
    double age = 0;                      // seconds; the longer, where both sides tell
    std::vector<std::size_t> waits_for;  // indices into calls
    bool awaited = false;                // by another call
  };
  std::vector<Call> calls;                       // the oldest first
  std::vector<std::vector<std::size_t>> cycles;  // each call waits for the next, the last for the first
};

// older: seconds. Calls that have been in flight for less are left out.
WaitGraph wait_graph(const std::vector<rpc::CallsInFlight>& agents, double older);

// {"calls": [{"caller", "incarnation", "id", "text", "age", "waits_for": [index, ...]}, ...],
//  "cycles": [[index, ...], ...]}
PrintedJson json_of(const WaitGraph& graph);

// As lines: each call with what it waits for below it, then the cycles.
std::string text_of(const WaitGraph& graph);

}  // namespace weft::tool
