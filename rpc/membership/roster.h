// Roster: what the store says of a job's members, and what follows from it. Pure: no agent, no clock, no
// lock.
//
// A member's record is written by itself, under its lease: it vanishes with that. One that left says so in
// its place for a while (in a fixed world for ever), so that everybody can tell the two ends apart.
#pragma once

#include <weft/rpc/agent/members.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/store/store.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// Where the store keeps what.
namespace membership_keys {
inline constexpr std::string_view members = "members/";  // + name: its record
inline constexpr std::string_view ranks = "ranks/";      // + rank: the name that has it, in a fixed world
// The name of rank 0, which keeps watch. Empty: the agent that keeps the store is no member, and nobody does.
inline constexpr std::string_view host = "host";
inline constexpr std::string_view world = "world";  // "elastic", or "fixed N": of N members
}  // namespace membership_keys

// The states of a member, in their order.
enum class MemberState : std::uint8_t {
  claimed,  // has taken its name, and is not known to be within reach yet
  joined,
  serving,   // joined, with nothing left to do but to serve the others
  released,  // serving, and its layers have released what they held at the others
  left,
  lost,  // where the world is not fixed: the host found it gone
};

// How the incarnation of a name ended that another one took the place of.
struct EarlierLife {
  std::uint64_t incarnation = 0;
  bool left = false;  // else it was lost
};

// A member as the store has it.
struct MemberRecord : Member {
  MemberState state = MemberState::claimed;
  std::optional<EarlierLife> before;

  // What follows from the state.
  bool serves() const { return state == MemberState::serving || state == MemberState::released; }
  bool here() const { return state == MemberState::joined || serves(); }
  bool gone() const { return state == MemberState::left || state == MemberState::lost; }
};

// As text, its name is the key: words and lines that a person who looks into a store can read.
WEFT_EXPORT std::string to_text(const MemberRecord& record);
WEFT_EXPORT MemberRecord from_text(std::string name, const std::string& text);  // throws protocol_error

// A value; copies share the records, of which a large job's members have many and change few at a time.
class WEFT_EXPORT Roster {
 public:
  using Records = std::map<std::string, std::shared_ptr<const MemberRecord>>;  // by name; none is null

  Roster() = default;
  explicit Roster(const StoreView& view);  // of membership_keys::members; throws as apply() does
  // Of a watch of membership_keys::members. Throws protocol_error, and is then as it was.
  void apply(const StoreChanges& changes);

  // Null: no record has this name.
  const MemberRecord* find(const std::string& name) const;
  const Records& members() const { return *members_; }
  std::size_t joined() const;  // how many have joined, those included that are gone and not forgotten
  std::size_t here() const;    // members for which MemberRecord::here() is true
  // Whether every member except `self` only serves or is gone.
  bool idle(const std::string& self) const;
  // The members except `self` that keep it from leaving. While one has work left, these are the members with
  // work left. Then those that have not released yet what they hold. The host also waits until all are gone,
  // because its end would be the others' loss.
  std::vector<std::string> awaited_by(const std::string& self, bool host) const;

 private:
  std::shared_ptr<const Records> members_ = std::make_shared<const Records>();
};

// What has happened between two views of the members, in the order of their names.
WEFT_EXPORT std::vector<MemberEvent> events_between(const Roster& before, const Roster& after);
// Somebody, of `before`, whose record has vanished: in a fixed world that is the end, also of who had only
// claimed a name, because nobody else takes its place. Null: nobody.
WEFT_EXPORT const MemberRecord* loss_between(const Roster& before, const Roster& after);

}  // namespace weft::rpc
