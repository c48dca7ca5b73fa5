// WaitGraph: shows which call waits for which other call, across agents. The data of the graph are the
// agents' reports of their calls (weft.pending).
//
// A call waits for the calls that its handler makes on its behalf (peer.with(call)). A queued call waits for
// the calls that run on the same object, for the calls that its method's limit has admitted, or, if all
// handler threads are busy, for the calls that run on them. The graph does not show waits that an agent does
// not know (a handler that waits for something else). Calls that change while the agents are queried may be
// missing, or occur twice. To distinguish such calls from a call that hangs, make a second graph.
// Thread-safety: values.
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
    double age = 0;                      // seconds; the greater age if both sides report the call
    std::vector<std::size_t> waits_for;  // indices into calls
    bool awaited = false;                // another call waits for it
  };
  std::vector<Call> calls;  // the oldest first
  // Each call waits for the next one, and the last for the first.
  std::vector<std::vector<std::size_t>> cycles;
};

// older: in seconds. Calls that have been in flight for a shorter time are omitted.
WaitGraph wait_graph(const std::vector<rpc::CallsInFlight>& agents, double older);

// {"calls": [{"caller", "incarnation", "id", "text", "age", "waits_for": [index, ...]}, ...],
//  "cycles": [[index, ...], ...]}
PrintedJson json_of(const WaitGraph& graph);

// The graph as lines: each call with the calls that it waits for below it, then the cycles.
std::string text_of(const WaitGraph& graph);

}  // namespace weft::tool
