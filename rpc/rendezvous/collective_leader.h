// CollectiveLeader: runs the barriers and all_gathers that this agent leads. The leader of a collective is
// the first of its members by name.
//
// Each member calls the leader with its value. When all have called, the leader replies to each with all
// values. The leader alone decides the result of one such collective (a round), so that all members get the
// same result. The round fails for all members if a member's deadline expires, or if a member is lost,
// leaves, or cancels its call. A member that calls after the failure gets the same error. Owned by the job's
// membership. The leader releases its mutex before it completes a promise. Thread-safe.
#pragma once

#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/rendezvous/roster.h>

namespace weft::rpc::detail {

// The call of a member. A value.
struct CollectiveArrival {
  std::string name;
  std::vector<AgentId> among;  // the members, sorted by name, without duplicates; the first is the leader
  // The number of this collective among the caller's collectives with this name and members. It is equal on
  // all members.
  std::uint64_t round = 0;
  std::uint64_t seen = 0;     // the version of the store in which the caller saw all members
  std::uint64_t timeout = 0;  // ns; 0: no deadline
  std::string type;           // the canonical type of the value; empty: a barrier
};
WEFT_CODEC(CollectiveArrival, name, among, round, seen, timeout, type)

std::string to_string(const CollectiveArrival& arrival);  // "barrier 'epoch'"

class WEFT_EXPORT CollectiveLeader : public std::enable_shared_from_this<CollectiveLeader> {
 public:
  using Gathered = std::map<std::string, Buffer>;  // by the member's name

  // loop: runs the timers of deadlines.
  explicit CollectiveLeader(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  // A member of arrival.among calls the collective. The future fails as Job::all_gather does.
  Future<Gathered> arrive(const AgentId& who, const CollectiveArrival& arrival, Buffer value);
  // Fails the round, because a member no longer waits. No effect if the round has ended.
  void give_up(const AgentId& who, const CollectiveArrival& arrival, ErrorKind kind,
               const std::string& reason);
  // Applies the members' records of a store version. If a member of a round is gone, the round fails. judge()
  // considers only rounds whose callers had seen all members in this version or an earlier one. While no lock
  // is held, the caller runs the returned function, which completes the promises.
  Callback judge(const Roster& roster, std::uint64_t version);
  void fail_all(const Error& error);  // fails all open rounds; new ones may start later
  // Called when the agent shuts down without having left the job. The other members then consider the agent
  // lost, so the leader no longer replies to them.
  void stop();

 private:
  using Key = std::pair<std::string, std::vector<AgentId>>;
  struct Timer {  // used on the loop
    Loop::TimerId id = 0;
    bool over = false;
  };
  struct Round {
    CollectiveArrival first;
    std::uint64_t seen = 0;    // the latest version that one of its callers has seen
    std::uint64_t judged = 0;  // the last store version that judge() applied
    Gathered values;
    std::vector<Promise<Gathered>> waiting;
    std::vector<std::shared_ptr<Timer>> timers;
  };
  struct OpenRounds {
    std::map<std::uint64_t, Round> open;
    std::uint64_t failed = 0;      // rounds with a lower number have ended, unless they are in `open`
    std::optional<Error> failure;  // the latest error
  };
  struct Ended {
    Round round;
    std::optional<Error> error;  // nullopt: all members have called
  };

  void start_timer(const std::shared_ptr<Timer>& timer, const CollectiveArrival& arrival);
  void expire(const CollectiveArrival& arrival);
  Round* find(const CollectiveArrival& arrival) WEFT_REQUIRES(mutex_);
  Ended fail(const CollectiveArrival& arrival, ErrorKind kind, const std::string& reason)
      WEFT_REQUIRES(mutex_);
  Ended take(const Key& key, std::uint64_t round) WEFT_REQUIRES(mutex_);
  void tell(Ended&& ended) const;

  const std::shared_ptr<Loop> loop_;
  Mutex mutex_;
  std::map<Key, OpenRounds> rounds_ WEFT_GUARDED_BY(mutex_);
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<Promise<Gathered>> unanswered_ WEFT_GUARDED_BY(mutex_);  // calls after stop()
};

}  // namespace weft::rpc::detail
