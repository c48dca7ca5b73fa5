// GroupMember: one member's place in a group: its rank, the other members, and the turn of its jobs.
//
// The base of GroupCore, which the objects that guard the group's state (GroupFailure, GroupCollectives, …)
// use and keep alive by shared_from_this(). Jobs run one at a time (job_queue.h): messages of other members
// run on the loop that receives them, operations of this member's program run on the group's loop or, if
// `inlined`, on the caller's thread. Thread-safe.
#pragma once

#include <weft/parallel/collectives/flight/flight_recorder.h>
#include <weft/parallel/collectives/internal/group/group_service.h>
#include <weft/parallel/collectives/internal/group/job_queue.h>
#include <weft/parallel/collectives/operation/group_options.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/peer.h>

#include <map>

namespace weft::collectives {

class FlightWriter;
namespace nccl {
class Devices;
}

class WEFT_EXPORT GroupMember : public std::enable_shared_from_this<GroupMember> {
 public:
  struct Options : GroupOptions {                // GroupOptions::members is not used
    std::shared_ptr<nccl::Devices> devices;      // of the agent
    std::shared_ptr<FlightWriter> flights = {};  // of the agent; null: no dumps are written
  };

  // Constant. members(): by rank.
  const GroupId& id() const { return id_; }
  const std::string& name() const { return options_.name; }
  const Options& options() const { return options_; }
  const std::vector<rpc::AgentId>& members() const { return members_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const std::shared_ptr<rpc::AgentCore>& agent() const { return agent_; }
  const std::shared_ptr<rpc::Loop>& loop() const { return loop_; }  // the loop of the timer
  const rpc::Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  int rank_of(const rpc::AgentId& member) const;  // -1: none
  std::string describe(int rank) const;           // "rank 2 (worker2)"
  std::string prefix() const { return "group '" + options_.name + "': "; }
  rpc::Error error(rpc::ErrorKind kind, const std::string& text) const { return {kind, prefix() + text}; }
  std::string text_of(const std::exception_ptr& error) const { return agent_->hooks().text_of(error); }
  // The error of an operation whose ranks call different ones. texts: the calls, by rank.
  rpc::Error difference(const std::map<int, std::string>& texts) const;
  // The time limit of an operation from now on. nullopt: the default of the group.
  rpc::Clock::time_point deadline_of(std::optional<std::chrono::nanoseconds> timeout) const {
    return rpc::later(loop_->now(), timeout.value_or(options_.timeout));
  }

  // The same, of an operation that waits for other ranks, and hardly for the transfer.
  std::chrono::nanoseconds wait_limit(std::optional<std::chrono::nanoseconds> timeout) const {
    const auto late_after = options_.late_after;
    return timeout.value_or(late_after.count() > 0 ? std::min(late_after, options_.timeout)
                                                   : options_.timeout);
  }

  // Sends a notification to a member. `sent` is called when it has been sent, or with the error if it cannot
  // be sent.
  template <auto Method, class Sent, class... Arguments>
  void notify(int to, Sent sent, const Arguments&... arguments) const {
    using Found = rpc::FoundMethod<Method>;
    const auto& calls = peer(to).calls();
    rpc::OutgoingCall call = calls.make(Found::name, Found::id, sizeof...(Arguments));
    call.notify = true;
    rpc::encode_call<typename Found::Type>(call, arguments...);
    calls.start_typed<void>(std::move(call), rpc::DecodeReply<void>{}).then(std::move(sent));
  }

  FlightRecorder& recorder() { return recorder_; }
  const FlightRecorder& recorder() const { return recorder_; }
  // error: null: the operation has completed.
  void note_end(FlightRecorder::Ticket ticket, const std::exception_ptr& error) {
    error == nullptr ? recorder_.done(ticket) : recorder_.failed(ticket, text_of(error));
  }

  // Run a job in turn: run() and run_first() as JobQueue; post() on another thread; run_one() on this thread
  // if it is the only job, else on the loop. If the agent has ended, these two run the job at once, because
  // the loop may not run any more.
  void run(rpc::Callback job) { queue_.run(std::move(job)); }
  void post(rpc::Callback job) {
    if (agent_->ended()) return run(std::move(job));
    queue_.post(std::move(job), *loop_, shared_from_this());
  }
  void run_one(rpc::Callback job) {
    if (agent_->ended()) return run(std::move(job));
    queue_.run_one(std::move(job), *loop_, shared_from_this());
  }
  void run_first(rpc::Callback job) { queue_.run_first(std::move(job), *loop_, shared_from_this()); }

 protected:
  GroupMember(std::shared_ptr<rpc::AgentCore> agent, GroupId id, Options options,
              std::vector<rpc::AgentId> members, int rank, JobQueue::Failed failed);
  ~GroupMember() = default;

 private:
  const std::shared_ptr<rpc::AgentCore> agent_;
  const GroupId id_;
  const Options options_;
  const std::vector<rpc::AgentId> members_;
  const int rank_;
  const std::shared_ptr<rpc::Loop> loop_;
  std::vector<rpc::Peer> peers_;  // by rank
  FlightRecorder recorder_;
  JobQueue queue_;
};

}  // namespace weft::collectives
