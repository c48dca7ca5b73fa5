// Roster: the records of a job's members in the store, and what follows from them. No agent, clock or lock.
//
// Each member writes its own record, under its lease: the record is removed when the lease expires. A member
// that leaves replaces its record by one of state `left`, for a while (in a fixed world, permanently). So the
// other members can tell the two ends apart.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/rendezvous/membership.h>
#include <weft/rpc/store/store.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// The keys of the store.
namespace membership_keys {
inline constexpr std::string_view members = "members/";  // + name: its record
inline constexpr std::string_view ranks = "ranks/";      // + rank: the name that has it, in a fixed world
// The name of rank 0, which detects losses. Empty: the agent that keeps the store is not a member.
inline constexpr std::string_view host = "host";
inline constexpr std::string_view world = "world";  // "elastic", or "fixed N" for N members
}  // namespace membership_keys

// The states of a member, in the order in which they follow each other.
enum class MemberState : std::uint8_t {
  claimed,  // has taken its name, but may not be reachable yet
  joined,
  serving,   // joined, and has no work except to serve the others
  released,  // serving, and its layers have released what they held at the others
  left,
  lost,  // in an elastic world: the host found it gone
};

// How the previous incarnation of a name ended.
struct EarlierLife {
  std::uint64_t incarnation = 0;
  bool left = false;  // otherwise it was lost
};

// A member's record.
struct MemberRecord : Member {
  MemberState state = MemberState::claimed;
  std::optional<EarlierLife> before;

  // Derived from the state.
  bool serves() const { return state == MemberState::serving || state == MemberState::released; }
  bool here() const { return state == MemberState::joined || serves(); }
  bool gone() const { return state == MemberState::left || state == MemberState::lost; }
};

// As text, under the name as key: readable words and lines.
WEFT_EXPORT std::string to_text(const MemberRecord& record);
WEFT_EXPORT MemberRecord from_text(std::string name, const std::string& text);  // throws protocol_error

// A value; copies share the records: a large job has many, of which few change at a time.
class WEFT_EXPORT Roster {
 public:
  using Records = std::map<std::string, std::shared_ptr<const MemberRecord>>;  // by name; none is null

  Roster() = default;
  explicit Roster(const StoreView& view);  // of membership_keys::members; throws as apply() does
  // Applies a watch of membership_keys::members. Throws protocol_error, and does not change the roster then.
  void apply(const StoreChanges& changes);

  // Null: no record has this name.
  const MemberRecord* find(const std::string& name) const;
  const Records& members() const { return *members_; }
  std::size_t joined() const;  // including members that are gone but still have a record
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

// The changes between two views of the members, in the order of their names.
WEFT_EXPORT std::vector<MemberEvent> events_between(const Roster& before, const Roster& after);
// A member of `before` whose record has been removed. In a fixed world this is the end of the job, even if
// the member had only claimed its name, because no other agent takes its place. Null: none.
WEFT_EXPORT const MemberRecord* loss_between(const Roster& before, const Roster& after);

}  // namespace weft::rpc
