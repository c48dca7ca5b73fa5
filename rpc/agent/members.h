// Members: who is in the job of an agent, and how to be told of joins, leaves and deaths.
//
//   for (auto watch = agent.watch_members();;)
//     for (const rpc::MemberEvent& event : co_await watch->next())
//       if (event.change == rpc::MemberChange::lost) …
//
// What an agent knows comes from the job's store, and may be a moment old.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/future.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// What a member says of itself, in this incarnation of its name. A value.
struct Member {
  std::string name;
  std::uint64_t incarnation = 0;
  std::optional<std::size_t> rank;  // where it has one
  std::vector<std::string> addresses;
  std::map<std::string, std::string> metadata;  // of its Rendezvous

  AgentId id() const { return {name, incarnation}; }
};

enum class MemberChange : std::uint8_t {
  joined,
  left,  // in good order
  lost,  // it has died, or nobody has heard of it for as long as its lease
};
WEFT_EXPORT std::string_view to_string(MemberChange change);

struct MemberEvent {
  MemberChange change = MemberChange::joined;
  Member member;
};

// One onlooker's way through the job's history, from where it began; made by Agent::watch_members().
// Thread-safe.
class WEFT_EXPORT MemberWatch {
 public:
  virtual ~MemberWatch() = default;

  // The events since the last call, as soon as there is one; the first time all present members, this agent
  // included, as joined. The end of an incarnation is reported before the beginning of the next one with that
  // name; a member that joined and left between two calls is not reported. One call at a time
  // (failed_precondition); cancel() ends the wait and loses nothing. Ends with shut_down, with what ended the
  // job (peer_lost), with lease_lost where this agent was itself taken for dead, with unavailable where the
  // store is gone.
  virtual Future<std::vector<MemberEvent>> next() = 0;
};

}  // namespace weft::rpc
