// Roster: the records of a job's members in the store, and functions that derive the state of the job from
// them. It uses no agent, clock or lock.
//
// Each member writes its own record, under its lease: the record is removed when the lease expires. A member
// that leaves replaces its record by a record of state `left`, which exists for a while (in a fixed world,
// permanently). So the other members can tell a member that has left from one that was lost.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/job/membership/member.h>
#include <weft/rpc/job/store/store.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// The keys of the store.
namespace membership_keys {
inline constexpr std::string_view members = "members/";  // + name: the record of this member
inline constexpr std::string_view ranks = "ranks/";      // + rank: its member's name (fixed worlds only)
// The name of rank 0, which detects losses. Empty: the agent that keeps the store is not a member.
inline constexpr std::string_view host = "host";
inline constexpr std::string_view world = "world";  // "elastic", or "fixed N" for N members
// The identity of a fixed world: the metadata of this name, if its members have it.
inline constexpr std::string_view job = "weft.job";
// + name: "INCARNATION WHY". The others continue without this member, because it made no progress although
// its agent answers (docs/elastic.md). Its launcher ends it. A member that makes progress again removes the
// key.
inline constexpr std::string_view excluded = "excluded/";
}  // namespace membership_keys

// The states of a member, in the order in which they follow each other.
enum class MemberState : std::uint8_t {
  claimed,  // has taken its name, but may not be reachable yet
  joined,
  serving,   // joined, and has no work except to serve the others
  released,  // serving, and its layers have released their references at other members
  left,
  lost,  // in an elastic world: the host has detected that the member is gone
};

// How the previous incarnation of a name ended.
struct EarlierLife {
  std::uint64_t incarnation = 0;
  bool left = false;  // false: it was lost
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

// A record as text of readable words and lines. Its key in the store has the member's name.
WEFT_EXPORT std::string to_text(const MemberRecord& record);
WEFT_EXPORT MemberRecord from_text(std::string name, const std::string& text);  // throws protocol_error

// A value. A change of few members of a large job costs as much as these members.
class WEFT_EXPORT Roster {
 public:
  // Records by name. Null: the name has no record.
  using Records = std::map<std::string, std::shared_ptr<const MemberRecord>>;

  Roster() = default;
  explicit Roster(const StoreView& view);  // of membership_keys::members; throws as changed() does
  // The new records of the names that a watch of membership_keys::members reports. Throws protocol_error if a
  // record is malformed.
  Records changed(const StoreChanges& changes) const;
  // This roster's records of the same names.
  Records at(const Records& names) const;
  void apply(const Records& changed);

  // Null: no record has this name.
  const MemberRecord* find(const std::string& name) const;
  const Records& members() const { return members_; }  // none is null
  std::size_t joined() const;  // including members that are gone but still have a record
  std::size_t here() const;    // members for which MemberRecord::here() is true
  // Whether every member except `self` only serves or is gone.
  bool idle(const std::string& self) const;
  // The members that `self` must wait for before it leaves. While other members have work left, these are the
  // members with work. After that, they are the members that have not released their references. The host
  // waits until all other members are gone, because their waits fail when the host has left.
  std::vector<std::string> awaited_by(const std::string& self, bool host) const;

 private:
  std::size_t& count_of(const MemberRecord& record) {
    return counts_[static_cast<std::size_t>(record.state)];
  }
  std::size_t count(MemberState state) const { return counts_[static_cast<std::size_t>(state)]; }

  Records members_;
  std::array<std::size_t, 6> counts_{};  // of the members, by state
};

// The changes between two views of the same members, in the order of their names.
WEFT_EXPORT std::vector<MemberEvent> events_between(const Roster::Records& before,
                                                    const Roster::Records& after);
// A member of `before` whose record has been removed; null: none. In a fixed world the removal ends the job,
// even if the member had only claimed its name, because no other agent can replace the member.
WEFT_EXPORT const MemberRecord* loss_between(const Roster::Records& before, const Roster::Records& after);

}  // namespace weft::rpc
