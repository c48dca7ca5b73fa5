// The members of a job, as its store reports them: their data, the changes, and the options of operations
// that members call together. Values; MemberWatch is thread-safe.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/future.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

namespace detail {
class JobMembership;
struct Watcher;
}  // namespace detail

// The published data of a member, for one incarnation of its name. A value.
struct Member {
  std::string name;
  std::uint64_t incarnation = 0;
  std::optional<std::size_t> rank;  // nullopt: the member has no rank
  std::vector<std::string> addresses;
  std::map<std::string, std::string> metadata;  // Rendezvous::metadata

  AgentId id() const { return {name, incarnation}; }  // of this incarnation
};

// A change of a member.
enum class MemberChange : std::uint8_t {
  joined,  // the member can be called
  left,    // by leave()
  lost,    // the member has died, or its lease has expired
};
WEFT_EXPORT std::string_view to_string(MemberChange change);

// One event of a MemberWatch. A value.
struct MemberEvent {
  MemberChange change = MemberChange::joined;
  Member member;  // as published
};

// Reports the changes of a job's members, in order. Job::watch_members() creates it. It may outlive the
// agent. Thread-safe.
class WEFT_EXPORT MemberWatch {
 public:
  MemberWatch(std::weak_ptr<detail::JobMembership> job, std::shared_ptr<detail::Watcher> watcher)
      : job_(std::move(job)), watcher_(std::move(watcher)) {}

  // Completes with the events since the last call, once there is at least one. The first call returns all
  // present members, including this agent, as joined. The end of an incarnation is reported before the
  // beginning of the next one with that name; a member that joined and left between two calls is not
  // reported. A second call while one waits fails with failed_precondition. cancel() ends the wait and loses
  // no event. Fails with shut_down, with the error that ended the job (peer_lost), with lease_lost if this
  // agent was declared dead, or with unavailable if the store is gone.
  Future<std::vector<MemberEvent>> next();

 private:
  std::weak_ptr<detail::JobMembership> job_;
  std::shared_ptr<detail::Watcher> watcher_;
};

// The name, the members and the timeout of a barrier or an all_gather (Job::barrier, Job::all_gather).
struct CollectiveOptions {
  // A collective is identified by its name, its members, and its number among the collectives with the same
  // name and members: the nth calls of all members form one collective. Reuse names: members keep a counter
  // for each name.
  std::string name = {};
  // Names of members, in any order, including this one. Empty: all members of a fixed world.
  std::vector<std::string> among = {};
  std::optional<std::chrono::nanoseconds> timeout = {};  // nullopt: AgentOptions::call_timeout applies
};

}  // namespace weft::rpc
