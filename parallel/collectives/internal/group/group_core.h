// GroupCore: one member's part in a group: the collectives in flight, their failures, and the failure of the
// group.
//
// Collectives are numbered in the order in which they start here. All members start them in the same order.
// The group's backend moves their data (backend/backend.h). Collectives on tensors of a device use
// GroupDevices instead (devices_for()). Messages carry the hash of their collective's signature. If a message
// has another hash, all members exchange their signatures, and that collective fails on every rank; the group
// remains usable. The group fails on all ranks, with one error, when a member is lost or has left while it
// was needed, a deadline has passed, a collective is aborted or a message is malformed. The member that
// detects the failure first notifies the others.
//
// Jobs run one at a time (turns.h): messages of other members run on the loop that receives them, operations
// of this member's program run on the group's loop or, if `inlined`, on the caller's thread. Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/flight/flight_dump.h>
#include <weft/parallel/collectives/flight/flight_recorder.h>
#include <weft/parallel/collectives/internal/group/group_devices.h>
#include <weft/parallel/collectives/internal/group/launch_sequence.h>
#include <weft/parallel/collectives/internal/group/mailbox.h>
#include <weft/parallel/collectives/internal/group/value_rounds.h>
#include <weft/parallel/collectives/operation/group_options.h>
#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/parallel/collectives/internal/group/turns.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/peer.h>

#include <algorithm>
#include <compare>
#include <set>

namespace weft::collectives {

// The id of a group, unique over all agents: the incarnation of rank 0, and a number that rank 0 counts.
struct GroupId {
  std::uint64_t origin = 0, number = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};
WEFT_CODEC(GroupId, origin, number)
WEFT_CODEC(RoundKey, number, launch)

// One side of a message between two members.
struct Message {
  std::uint64_t tag = 0;
  std::string type;  // "float32[4]"; equal on both sides
  std::source_location site;
  rpc::Buffer bytes;                                // the sent bytes, or the destination
  std::optional<std::chrono::nanoseconds> timeout;  // none: the default of the group
};

class WEFT_EXPORT GroupCore final : public BackendOwner, public std::enable_shared_from_this<GroupCore> {
 public:
  struct Options : GroupOptions {            // GroupOptions::members is not used
    std::shared_ptr<nccl::Devices> devices;  // of the agent
  };
  // kind: the kind of the backend.
  GroupCore(std::shared_ptr<rpc::AgentCore> core, GroupId id, Options options,
            std::vector<rpc::AgentId> members, int rank, GroupBackend kind, std::unique_ptr<Backend> backend);
  ~GroupCore() override;

  // Constant. members(): by rank. kind(): of the backend.
  const GroupId& id() const { return id_; }
  const std::string& name() const { return options_.name; }
  const std::vector<rpc::AgentId>& members() const { return members_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  GroupBackend kind() const { return kind_; }
  Backend& backend() const { return *backend_; }  // for tensors of the host
  // Returns the GroupDevices that run a call on that tensor; null if the backend runs the call. tensor: the
  // call's first tensor; null for a barrier.
  GroupDevices* devices_for(const at::Tensor* tensor) {
    return tensor != nullptr && is_on_device(*tensor) ? &devices_ : nullptr;
  }

  // A collective on tensors of the host. inlined: it runs on the calling thread until it must wait.
  // Cancelling the future aborts the group.
  rpc::Future<void> start(Collective collective, bool inlined = false);
  // Takes the place of a call that this rank refuses with the error `why`: the collective fails on all other
  // ranks with invalid_argument and the text of `why`. Returns a future with `why`.
  rpc::Future<void> decline(Operation operation, std::optional<c10::DeviceType> device,
                            std::source_location site, const std::exception_ptr& why);
  // Messages between two members. Cancelling a future aborts the group.
  rpc::Future<void> send(int to, Message message);                     // completes when it has been received
  rpc::Future<int> receive(std::optional<int> from, Message message);  // returns the sender
  // Takes the place of a message that this rank refuses with the error `why`: the other side fails with
  // invalid_argument and the text of `why`. peer: nullopt: any rank. An invalid rank has no other side.
  void decline(PointToPoint::Kind kind, std::optional<int> peer, std::uint64_t tag, std::source_location site,
               const std::exception_ptr& why);
  rpc::Future<rpc::Buffer> receive_any_size(int from, Message message);      // returns the bytes
  rpc::Future<Mailbox::Received> receive_tensor(int from, Message message);  // of any dtype and shape
  // give() sends a small value to rank 0, which gathers the values. Its future has all members' values, by
  // rank, or no values if wants_all is false. All members must reserve rounds in the same order; they may
  // give values in any order.
  std::uint64_t reserve_rounds(std::uint64_t count) { return rounds_reserved_.fetch_add(count); }
  rpc::Future<ValueRounds::Values> give(RoundKey round, std::string meaning, std::source_location site,
                                        rpc::Buffer value, bool wants_all,
                                        std::optional<std::chrono::nanoseconds> timeout);
  // Calls `begin` on the group's loop when all members are ready for the launch of that name. All members
  // start their launches in the same order. If the group fails, calls `begin` with its error.
  void launch(const std::string& name, LaunchSequence::Begin begin, std::source_location site,
              std::optional<std::chrono::nanoseconds> timeout);
  // The error that has ended the group; nullopt: the group is usable.
  const std::optional<rpc::Error>& error() const { return ended_; }  // in a turn
  // End the group on all members: abort() with `aborted`, fail() with that error. Only the first error has an
  // effect.
  void abort(const std::string& reason);
  // Records that `group` was split from this one: abort() then ends `group` too, on all ranks.
  void add_split(const std::shared_ptr<GroupCore>& group);
  void fail(const std::exception_ptr& error);  // an error on a device
  void fail(const rpc::Error& error);
  // Runs a job when no dumps are being written. For jobs that report a failure to the program, which may then
  // exit.
  void after_dumps(rpc::Callback job);
  // Constant.
  GroupDevices& devices() { return devices_; }
  const std::shared_ptr<rpc::AgentCore>& agent() const { return core_; }
  const Options& options() const { return options_; }
  // Records in the flight recorder the ranks for which running collectives wait. If another thread is running
  // a job of this group, the ranks are recorded later.
  void note_awaited();

  FlightDump flight() const;  // the latest operations of this member, and its waits

  // Messages of members (group_service.h); messages of non-members are ignored.
  void data(const rpc::AgentId& from, std::uint64_t sequence, std::uint32_t label, std::uint64_t hash,
            rpc::Buffer bytes);
  void disagree(const rpc::AgentId& from, std::uint64_t sequence, std::string signature);
  rpc::Future<void> message(const rpc::AgentId& from, std::uint64_t tag, std::string type, rpc::Buffer bytes,
                            bool lent = false);
  rpc::Future<void> lent_message(const rpc::AgentId& from, std::uint64_t tag, std::string type,
                                 std::uint64_t offset, std::uint64_t bytes);
  rpc::Future<ValueRounds::Values> value(const rpc::AgentId& from, RoundKey round, std::string meaning,
                                         std::string site, rpc::Buffer bytes, bool wants_all,
                                         std::chrono::nanoseconds limit);
  void failed(const rpc::AgentId& from, rpc::ErrorKind kind, std::string text);
  void left(const rpc::AgentId& from);
  // Whether this member has started the collective of that number. Any thread.
  bool has_begun(std::uint64_t sequence) const {
    return sequence < std::max(begun_.load(), backend_->begun());
  }

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
  struct Sent {  // a message that was sent and is not received yet
    int to;
    std::string what;
    rpc::Clock::time_point deadline;
    rpc::Promise<void> promise;
    FlightRecorder::Ticket ticket;
  };
  struct Snapshot {
    std::shared_ptr<GroupCore> group;
    FlightDump dump;
  };
  struct Given {  // a value that was given to rank 0 and is not answered yet
    std::string what;
    rpc::Clock::time_point deadline;  // by which rank 0 must answer; rank 0's error names the missing ranks
    rpc::Promise<ValueRounds::Values> promise;
    std::optional<FlightRecorder::Ticket> ticket;  // none: a launch, because its collectives are recorded
  };

  rpc::Future<Mailbox::Received> take_message(std::optional<int> from, Message message,
                                              std::optional<std::size_t> size);
  void on_loop(rpc::Callback job);  // in turn, on another thread
  void in_turn(rpc::Callback job);  // on this thread if it is the only job, else on the loop
  rpc::Future<ValueRounds::Values> take_value(int from, RoundKey round, std::string meaning, std::string site,
                                              rpc::Buffer bytes, bool wants_all,
                                              std::chrono::nanoseconds limit);

  // See BackendOwner.
  bool may_wait_here() const override { return !rpc::OwnedThread::here() && !loop_->runs_on_this_thread(); }
  void run_in_turn(rpc::Callback job, bool inlined) override {
    inlined ? turns_.run(std::move(job)) : in_turn(std::move(job));
  }
  void begin(ExchangePtr exchange, bool inlined) override;
  void keep(const ExchangePtr& exchange) override;
  void send_part(ExchangePtr exchange, int to, std::uint32_t label, const rpc::Buffer& bytes,
                 rpc::Callback left) override;
  void done(const ExchangePtr& exchange) override;
  void differed(const ExchangePtr& exchange) override;
  void differs(const ExchangePtr& exchange) override;
  void failed(const ExchangePtr& exchange, const std::exception_ptr& error) override;
  bool has_ended() const override { return ended_.has_value(); }

  // In turn:
  void begin_numbered(const ExchangePtr& exchange);
  void watch(const ExchangePtr& exchange);
  std::optional<rpc::Error> refusal(const Exchange& exchange) const;
  void take(const ExchangePtr& exchange, int from, std::uint32_t label, std::uint64_t hash,
            rpc::Buffer bytes);
  rpc::Error difference(const std::map<int, std::string>& signatures) const;
  rpc::Error fault_of(const Exchange& exchange, const std::exception_ptr& error) const;
  void fail_one(Exchange& exchange, const rpc::Error& error);
  std::chrono::nanoseconds limit_of(const Exchange& exchange) const {
    return exchange.collective.timeout.value_or(options_.timeout);
  }
  void record(Exchange& exchange);
  void record_arrival(Exchange& exchange);  // whose start is recorded
  void record_awaited();                    // of all running collectives
  std::vector<int> awaited_by(Exchange& exchange) const;
  void warn(Exchange& exchange) const;  // it has waited for GroupOptions::stall_warning
  void launch_numbered(const rpc::Buffer& number, LaunchSequence::Begin begin);  // in turn
  void value_over(const RoundKey& round, rpc::Result<ValueRounds::Values> values);
  void send_over(std::uint64_t number, rpc::Result<void> result);
  void kept_early(Early& early, std::size_t bytes);  // `early` has one more message
  // tell: notify the other members. write: write the dumps of all groups of this agent; futures fail once the
  // dumps are written.
  void fail_all(const rpc::Error& error, bool tell, bool write = true);
  void abort_splits(const std::string& reason);
  void leave_now();
  void fail_futures();
  void fail_written(const ExchangePtr& exchange);  // with the group's error
  void look_at_deadlines();
  void ask_who_is_missing(const ExchangePtr& exchange);
  void arm(rpc::Clock::time_point when);
  void has_left(int rank);
  bool is_awaited(int rank) const;
  void not_sent(int to, const std::exception_ptr& error);

  int rank_of(const rpc::AgentId& member) const;  // -1: none
  std::string describe(int rank) const;           // "rank 2 (worker2)"
  std::string prefix() const { return "group '" + options_.name + "': "; }
  void note_end(FlightRecorder::Ticket ticket, const std::exception_ptr& error);  // null: it has completed
  Snapshot snapshot();                                                            // in turn
  rpc::Future<Snapshot> take_snapshot();                                          // any thread
  void write_flight(const FlightDump& dump);  // on the layer's thread for files
  template <auto Method, class... Arguments>
  void tell_others(const Arguments&... arguments);

  const std::shared_ptr<rpc::AgentCore> core_;
  const GroupId id_;
  const Options options_;
  const std::vector<rpc::AgentId> members_;
  const int rank_;
  const std::shared_ptr<rpc::Loop> loop_;  // the loop of the timer
  std::vector<rpc::Peer> peers_;           // by rank

  const GroupBackend kind_;
  const std::unique_ptr<Backend> backend_;

  GroupDevices devices_;
  FlightRecorder recorder_;
  std::atomic<std::uint64_t> begun_{0};  // numbers assigned here; written in turn

  std::atomic<std::uint64_t> rounds_reserved_{0};
  std::int64_t written_ = 0;  // time of the last dump that was written; on the layer's thread for files

  Turns begins_{[](const std::exception_ptr&) {}};  // starts launches in order: posts to a loop have no order

  Turns turns_;  // guards the members below
  std::map<std::uint64_t, ExchangePtr> running_;
  std::map<std::uint64_t, Early> early_;
  std::size_t early_messages_ = 0, early_bytes_ = 0;
  Mailbox mailbox_;
  std::map<std::uint64_t, Sent> sent_;  // by number
  std::uint64_t sends_ = 0;
  ValueRounds values_;               // at rank 0
  std::map<RoundKey, Given> given_;  // by round
  LaunchSequence launches_;          // the launches for which all members are ready
  std::set<int> left_;               // members that have left in an orderly way
  std::optional<rpc::Error> ended_;
  std::vector<std::weak_ptr<GroupCore>> splits_;  // the groups that were split from this one, until abort()
  std::optional<std::string> aborted_;            // the reason, also if the group had ended before
  bool writing_ = false;                          // dumps are being written, after the group has ended
  std::vector<ExchangePtr> failing_;              // fail when the dumps are written
  std::vector<rpc::Callback> after_dumps_;        // run when the dumps are written
  std::optional<rpc::Clock::time_point> armed_;
};

}  // namespace weft::collectives
