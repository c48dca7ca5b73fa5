// The output of `weft top` for an agent: the rates between two replies of weft.stats. Thread-safety:
// functions without state.
#pragma once

#include <weft/rpc/agent/stats.h>

#include <string>

namespace weft::tool {

// Lines of at most `width` columns. lines: the maximum number of lines; the methods use the lines that remain
// (0: no limit). Methods with the most calls are first; methods that were never called are omitted. before,
// now: replies of the same incarnation of the agent, `now` the later one.
std::string top_text(const rpc::AgentStats& before, const rpc::AgentStats& now, std::size_t width,
                     std::size_t lines);

}  // namespace weft::tool
