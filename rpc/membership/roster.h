// Roster: what the store says of a job's members, and what follows from it. Pure: no agent, no clock, no
// lock.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/store/store.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// Where the store keeps what.
namespace membership_keys {
inline constexpr std::string_view members = "members/";  // + name: its record, written by itself
inline constexpr std::string_view ranks = "ranks/";      // + rank: the name that has it, in a fixed world
inline constexpr std::string_view host = "host";         // the name of rank 0, which keeps watch
}  // namespace membership_keys

enum class MemberState : std::uint8_t {
  claimed,  // has taken its name, and is not known to be within reach yet
  joined,
  serving,  // joined, with nothing left to do but to serve the others
  left,
  lost,  // where the world is not fixed: the host found it gone
};

struct Member {
  std::string name;
  std::uint64_t incarnation = 0;
  std::size_t rank = 0;
  MemberState state = MemberState::claimed;
  std::vector<std::string> addresses;

  AgentId id() const { return {name, incarnation}; }
  bool here() const { return state != MemberState::left && state != MemberState::lost; }
};

// A member's record in the store; its name is the key.
WEFT_EXPORT std::string to_record(const Member& member);
WEFT_EXPORT Member from_record(std::string name, const std::string& record);  // throws protocol_error

class WEFT_EXPORT Roster {
 public:
  Roster() = default;
  explicit Roster(const StoreView& view);  // of membership_keys::members

  const Member* find(const std::string& name) const;
  const std::map<std::string, Member>& members() const { return members_; }
  std::size_t joined() const;  // how many have joined, those that are gone included
  // Those but `self` that keep it from leaving: they have joined and are not gone. Members that only serve do
  // not wait for each other, or none would ever end; the host waits for all, because its end would be the
  // others' loss.
  std::vector<std::string> awaited_by(const std::string& self, bool host) const;

 private:
  std::map<std::string, Member> members_;
};

}  // namespace weft::rpc
