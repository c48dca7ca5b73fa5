// What `weft top` shows of an agent: rates between two answers of weft.stats. Thread-safety: none needed.
#pragma once

#include <weft/rpc/agent/stats.h>

#include <string>

namespace weft::tool {

// Lines of at most `width` columns, of which the methods take what is left of `lines` (0: all of them): those
// that are called most come first, and those that never were are left out. Both of the same incarnation of
// the agent, `now` the later one.
std::string top_text(const rpc::AgentStats& before, const rpc::AgentStats& now, std::size_t width,
                     std::size_t lines);

}  // namespace weft::tool
