// GroupFailure: whether the group has ended, and why; which members have left; and the deadlines.
//
// The group fails on all ranks, with one error, when a member is lost or has left while it was needed, a
// deadline has passed, a collective is aborted or a message is malformed. The member that detects the failure
// first notifies the others. GroupPart: an object of the group with operations in flight, which end with the
// group. Thread-safe, except where a comment states otherwise.
#pragma once

#include <weft/parallel/collectives/internal/group/flight_writer.h>
#include <weft/parallel/collectives/internal/group/group_member.h>

#include <map>
#include <set>

namespace weft::collectives {

// Called in turn.
class GroupPart {
 public:
  // Whether an operation in flight needs that rank, which has completed its first `completed` collectives.
  virtual bool awaits(int rank, std::uint64_t completed) = 0;
  // The number of collectives that this member has started.
  virtual std::uint64_t begun() const { return 0; }
  // Whether the other members notice it if this member leaves now.
  virtual bool busy() const { return false; }
  // A member has left.
  virtual void member_left(const rpc::Error& /*error*/) {}
  // Fails the group if a deadline has passed; returns the next deadline, or max.
  virtual rpc::Clock::time_point check_deadlines(rpc::Clock::time_point /*now*/) {
    return rpc::Clock::time_point::max();
  }
  // Records for which ranks operations wait.
  virtual void record_awaited() {}
  // The group has ended: stop() moves no more data, and fail() completes all futures.
  virtual void stop(const rpc::Error& /*error*/) {}
  virtual void fail(const rpc::Error& /*error*/) {}

 protected:
  ~GroupPart() = default;
};

class WEFT_EXPORT GroupFailure final : public FlightWriter::Source {
 public:
  // group: the owner. parts: of the same owner; they may be created later.
  GroupFailure(GroupMember& group, std::vector<GroupPart*> parts) : group_(group), parts_(std::move(parts)) {}

  // End the group on all members: abort() with `aborted`, fail() with that error. Only the first error has an
  // effect.
  void abort(const std::string& reason);
  void fail(const std::exception_ptr& error);  // an error on a device
  void fail(const rpc::Error& error);
  // abort() if the future is cancelled.
  template <class T>
  void abort_on_cancel(rpc::Promise<T>& promise, std::string what) {
    promise.on_cancel([this, weak = group_.weak_from_this(), what = std::move(what)] {
      if (const auto alive = weak.lock()) abort(group_.describe(group_.rank()) + " aborted " + what);
    });
  }
  // Records that the group of `split` was split from this one: abort() then ends that group too, on all
  // ranks.
  void add_split(const std::shared_ptr<GroupFailure>& split);
  // Runs a job when no dumps are being written. For jobs that report a failure to the program, which may then
  // exit.
  void after_dumps(rpc::Callback job);

  // Messages of members: the group has failed on another member; a member has left.
  void failed_elsewhere(rpc::ErrorKind kind, std::string text);
  // completed: as in GroupPart::awaits().
  void left(int rank, std::uint64_t completed);

  // Call it when an agent is gone. If it is a member, the group fails with peer_lost. If the reason is
  // shut_down, the member has left, and the group fails only if the member is still needed.
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason);
  // Call it when the job has failed. A rank that waits for another rank in shared memory sends no
  // messages to that rank, and would not detect its loss.
  void job_failed(const rpc::Error& error);
  // This member leaves: running collectives fail here and on the other members. The other members are
  // notified in any case. Completes when the notifications are sent.
  rpc::Future<void> leave();
  void end();  // the agent ends, and can no longer notify other members

  // Records in the flight recorder the ranks for which running collectives wait. If another thread is running
  // a job of this group, the ranks are recorded later.
  void note_awaited();
  FlightDump flight() const;  // the latest operations of this member, and its waits
  FlightDump dump() override;
  rpc::Future<FlightDump> take_dump() override;

  // In turn:
  // The error that has ended the group; nullopt: the group is usable.
  const std::optional<rpc::Error>& error() const { return ended_; }
  const std::map<int, std::uint64_t>& ranks_that_left() const { return left_; }
  bool writes_dumps() const { return writing_; }
  // Ends the group. tell: notify the other members. write: write the dumps of all groups of this agent;
  // futures fail once the dumps are written.
  void fail_now(const rpc::Error& error, bool tell = true, bool write = true);
  void fail_now(rpc::ErrorKind kind, const std::string& text) { fail_now(group_.error(kind, text)); }
  // That rank has refused a message, because its group or its agent has ended. If it has left, or leaves,
  // this group fails; other ends are reported otherwise.
  void refused_by(int rank);
  // A message to that rank could not be sent.
  void not_sent(int to, const std::exception_ptr& error);
  // Fails the group if an operation in flight needs a member that has left. Call it when one starts.
  void check_left();
  // Calls check_deadlines() of the parts at that time.
  void arm(rpc::Clock::time_point when);
  template <auto Method, class... Arguments>
  void notify_others(const Arguments&... arguments) {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (rank != group_.rank() && !left_.contains(rank))
        group_.notify<Method>(rank, [](rpc::Result<void>&&) {}, arguments...);
  }

 private:
  void abort_splits(const std::string& reason);
  void leave_now();
  void fail_futures();
  void check_deadlines();

  GroupMember& group_;
  const std::vector<GroupPart*> parts_;

  // In turn:
  std::optional<rpc::Error> ended_;
  std::map<int, std::uint64_t>
      left_;               // members that have left in an orderly way, and what they have completed
  std::set<int> refused_;  // refused_by()
  std::vector<std::weak_ptr<GroupFailure>>
      splits_;                              // the groups that were split from this one, until abort()
  std::optional<std::string> aborted_;      // the reason, also if the group had ended before
  bool writing_ = false;                    // dumps are being written, after the group has ended
  std::vector<rpc::Callback> after_dumps_;  // run when the dumps are written
  std::optional<rpc::Clock::time_point> armed_;
};

}  // namespace weft::collectives
