// CollectiveOptions: which members of a job meet in a barrier or an all_gather (Job::barrier,
// Job::all_gather), under which name, and for how long they wait. A value.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

struct CollectiveOptions {
  // Told apart are collectives of different names, of different members, and of one name and the same members
  // by their number: a member's nth meets the others' nth. A name is there to be used again: each is
  // remembered by its members for as long as they live.
  std::string name = {};
  // Names of members, in any order, this one among them. Empty: all, where the world is fixed.
  std::vector<std::string> among = {};
  std::optional<std::chrono::nanoseconds> timeout = {};  // none: AgentOptions::call_timeout
};

}  // namespace weft::rpc
