// GroupCollectives: the collectives of one member in flight, and the messages for collectives that have not
// started here.
//
// Collectives are numbered in the order in which they start here. All members start them in the same order.
// The group's backend moves their data (backend.h). Messages carry the hash of their collective's signature.
// If a message has another hash, all members exchange their signatures, and that collective fails on every
// rank; the group remains usable. Thread-safe, except where a comment states otherwise.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/internal/group/group_failure.h>

namespace weft::collectives {

class WEFT_EXPORT GroupCollectives final : public GroupPart {
 public:
  using Pointer = std::shared_ptr<CollectiveInFlight>;

  // group: the owner, with `failure` and `backend`.
  GroupCollectives(GroupMember& group, GroupFailure& failure, Backend& backend)
      : group_(group), failure_(failure), backend_(backend) {}

  // A collective on tensors of the host. inlined: it runs on the calling thread until it must wait.
  // Cancelling the future aborts the group.
  rpc::Future<void> start(Collective collective, bool inlined = false);
  // Takes the place of a call that this rank refuses with the error `why`: the collective fails on all other
  // ranks with invalid_argument and the text of `why`. Returns a future with `why`.
  rpc::Future<void> decline(Operation operation, std::optional<c10::DeviceType> device, rpc::Site site,
                            const std::exception_ptr& why);
  // Whether this member has started the collective of that number.
  bool has_begun(std::uint64_t sequence) const { return sequence < begun(); }

  // Messages of members: data, and the signature of a collective whose signatures differ.
  void data(int from, std::uint64_t sequence, std::uint32_t label, std::uint64_t hash, rpc::Buffer bytes);
  void signature(int from, std::uint64_t sequence, std::string signature);

  // For the classes of the backends. On any thread:
  // Whether the calling thread may wait for other ranks. A thread of an agent may not.
  bool may_wait_here() const { return !rpc::OwnedThread::here() && !group_.loop()->runs_on_this_thread(); }
  // Runs a job in turn. If `inlined`, this thread runs the earlier jobs and then this job. Otherwise this
  // thread runs the job only if there is no other job. If this thread does not run the job, the thread that
  // is running jobs or the group's loop runs it.
  void run_in_turn(rpc::Callback job, bool inlined) {
    inlined ? group_.run(std::move(job)) : group_.run_one(std::move(job));
  }
  // In turn, numbers and keeps a collective, delivers its messages that have already arrived, and calls its
  // begin().
  void begin(Pointer collective, bool inlined);

  // In turn:
  // Keeps a collective that its backend has numbered and started.
  void keep(const Pointer& collective);
  // Sends bytes to a rank, then runs `left` in turn. The group fails if they cannot be sent.
  void send(Pointer collective, int to, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left);
  // Another rank has a different signature: all ranks then exchange their signatures.
  void exchange_signatures(const Pointer& collective);
  // Ends the group with that error. error: null if the group has already ended, and the collective only
  // reports that it has stopped.
  void failed(const Pointer& collective, const std::exception_ptr& error);
  bool has_ended() const { return failure_.error().has_value(); }

  // In turn, or on any thread if the group does not keep the collective:
  void done(const Pointer& collective);
  // The ranks' signatures differ. signatures: of all ranks.
  void differed(const Pointer& collective, const std::map<int, std::string>& signatures);

  // See GroupPart.
  bool awaits(int rank, std::uint64_t completed) override;
  std::uint64_t begun() const override { return std::max(begun_.load(), backend_.begun()); }
  bool busy() const override { return !running_.empty(); }
  void member_left(const rpc::Error&) override { backend_.member_left(); }
  rpc::Clock::time_point check_deadlines(rpc::Clock::time_point now) override;
  void record_awaited() override;
  void stop(const rpc::Error& error) override;
  void fail(const rpc::Error& error) override;

 private:
  // The time in which a member must answer whether it has started a collective for which another member
  // waits.
  static constexpr std::chrono::seconds timeout_for_answers{5};

  struct Early {  // the data for a collective that has not started here
    struct Message {
      int from;
      std::uint32_t label;
      std::uint64_t hash;
      rpc::Buffer bytes;
    };
    std::vector<Message> messages;
    std::map<int, std::string> signatures;
    std::size_t bytes = 0;  // of both
    std::size_t count() const { return messages.size() + signatures.size(); }
  };

  std::shared_ptr<GroupCollectives> self() { return {group_.shared_from_this(), this}; }
  // In turn:
  void begin_numbered(const Pointer& collective);
  void watch(const Pointer& collective);
  void take(const Pointer& collective, int from, std::uint32_t label, std::uint64_t hash, rpc::Buffer bytes);
  void kept_early(Early& early, std::size_t bytes);  // `early` has one more message
  void fail_one(CollectiveInFlight& collective, const rpc::Error& error);
  void record(CollectiveInFlight& collective);
  void record_arrival(CollectiveInFlight& collective);  // whose start is recorded
  bool awaits(CollectiveInFlight& collective, int rank) const;
  std::vector<int> awaited_by(CollectiveInFlight& collective) const;
  void warn(CollectiveInFlight& collective) const;  // it has waited for GroupOptions::stall_warning
  // The collective has waited for `limit`: fails the group if ranks are missing, or in any case (must_end).
  void ask_who_is_missing(const Pointer& collective, std::chrono::nanoseconds limit, bool must_end);

  GroupMember& group_;
  GroupFailure& failure_;
  Backend& backend_;
  std::atomic<std::uint64_t> begun_{0};  // numbers assigned here; written in turn

  // In turn:
  std::map<std::uint64_t, Pointer> running_;
  std::map<std::uint64_t, Early> early_;
  std::size_t early_messages_ = 0, early_bytes_ = 0;
  std::vector<Pointer> failing_;  // fail when the dumps are written
};

}  // namespace weft::collectives
