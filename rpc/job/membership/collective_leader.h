// CollectiveLeader: runs the barriers and all_gathers that this agent leads. The leader of a collective is
// the first of its members by name.
//
// Each member calls the leader with its value. When all have called, the leader replies to each with all
// values, or, in a barrier, with none. The leader alone decides the result of one such collective (a round),
// so that all members get the same result. The round fails for all members if a member's deadline expires, or
// if a member is lost, leaves, or cancels its call. A member that calls after the failure gets the same
// error.
//
// A call names its members by a digest, because a list in each call would cost the leader the square of their
// number. If the leader does not know the list of a digest, it refuses one call with not_found, and that
// member calls again with the list. Calls with the same digest wait meanwhile.
//
// Owned by the job's membership. The leader releases its mutex before it completes a promise. Thread-safe.
#pragma once

#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/job/membership/roster.h>

namespace weft::rpc::detail {

// The members of a collective, sorted by name, without duplicates. The first is the leader.
using CollectiveMembers = std::vector<AgentId>;
// SHA-256 of the members, of which 128 bits are used, as hexadecimal text.
WEFT_EXPORT std::string digest_of(const CollectiveMembers& members);

// The call of a member. A value.
struct CollectiveArrival {
  std::string name;
  CollectiveMembers among;  // may be empty if `digest` is set
  // The number of this collective among the caller's collectives with this name and members. It is equal on
  // all members.
  std::uint64_t round = 0;
  std::uint64_t seen = 0;     // the version of the store in which the caller saw all members
  std::uint64_t timeout = 0;  // ns; 0: no deadline
  std::string type;           // the canonical type of the value; empty: a barrier
  std::string digest = {};    // of the members; may be empty if `among` is set
};
WEFT_CODEC(CollectiveArrival, name, among, round, seen, timeout, type, digest)

std::string to_string(const CollectiveArrival& arrival);  // "barrier 'epoch'"

class WEFT_EXPORT CollectiveLeader : public std::enable_shared_from_this<CollectiveLeader> {
 public:
  using Gathered = std::map<std::string, Buffer>;  // by the member's name; empty: of a barrier

  // loop: runs the timers of deadlines.
  explicit CollectiveLeader(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  // A member of the collective calls it. The future fails as Job::all_gather does, with permission_denied if
  // `member` is no member, and with not_found if `member` should call again with the list of members.
  Future<Gathered> arrive(const AgentId& member, const CollectiveArrival& arrival, Buffer value);
  // The list of a digest that members will use.
  void expect(const CollectiveMembers& members);
  // Fails the round, because a member no longer waits. No effect if the round has ended.
  void give_up(const AgentId& member, const CollectiveArrival& arrival, ErrorKind kind,
               const std::string& reason);
  // Applies the members' records of a store version. If a member of a round is gone, the round fails. judge()
  // considers only rounds whose callers had seen all members in this version or an earlier one. While no lock
  // is held, the caller runs the returned function, which completes the promises.
  Callback judge(const Roster& roster, std::uint64_t version);
  // Drops what is kept for the collectives of an incarnation that is gone, except rounds in progress.
  void forget(const AgentId& member);
  void fail_all(const Error& error);  // fails all open rounds; new ones may start later
  // Called when the agent shuts down without having left the job. The other members then consider the agent
  // lost, so the leader no longer replies to them.
  void stop();
  // The collectives (name and members) for which something is kept.
  std::size_t kept() const;

 private:
  using Key = std::pair<std::string, std::string>;  // the name, and the digest of the members
  struct Timer {                                    // used on the loop
    Loop::TimerId id = 0;
    bool over = false;
  };
  struct Arrived {
    Buffer value;
    Promise<Gathered> promise;
  };
  struct Round {
    CollectiveArrival first;
    std::uint64_t seen = 0;    // the latest version that one of its callers has seen
    std::uint64_t judged = 0;  // the last store version that judge() applied
    std::map<AgentId, Arrived> arrived;
    std::vector<std::shared_ptr<Timer>> timers;
  };
  struct OpenRounds {
    std::map<std::uint64_t, Round> open;
    std::uint64_t failed = 0;      // rounds with a lower number have ended, unless they are in `open`
    std::optional<Error> failure;  // the latest error
  };
  // The members of a digest.
  struct Group {
    CollectiveMembers members;  // empty: unknown
    // While unknown: the caller that was asked for the list, and the version of the store that it has seen.
    AgentId list_source;
    std::uint64_t seen = 0;
  };
  struct Ended {
    Round round;
    std::optional<Error> error;  // nullopt: all members have called
  };
  using Refused = std::vector<std::pair<Promise<Gathered>, Error>>;

  static Key key_of(const CollectiveArrival& arrival);
  void start_timer(const std::shared_ptr<Timer>& timer, const CollectiveArrival& arrival);
  void expire(const CollectiveArrival& arrival);
  Round* find(const CollectiveArrival& arrival) WEFT_REQUIRES(mutex_);
  // Sets the members of a group, and completes the rounds that waited for them, or refuses their callers.
  void learn(const std::string& digest, const CollectiveMembers& members, std::vector<Ended>& ended,
             Refused& refused) WEFT_REQUIRES(mutex_);
  // Asks another caller for the list of an unknown group, because the asked one is gone.
  void ask_another(const std::string& digest, Group& group, Refused& refused) WEFT_REQUIRES(mutex_);
  // Forgets lists that no round uses if there are too many: that costs their members one more call each.
  Group& group_of(const std::string& digest) WEFT_REQUIRES(mutex_);
  Ended fail(const Key& key, std::uint64_t round, ErrorKind kind, const std::string& reason)
      WEFT_REQUIRES(mutex_);
  Ended take(const Key& key, std::uint64_t round) WEFT_REQUIRES(mutex_);
  void deliver(std::vector<Ended>&& ended, Refused&& refused) const;

  const std::shared_ptr<Loop> loop_;
  mutable Mutex mutex_;
  std::map<std::string, Group> groups_ WEFT_GUARDED_BY(mutex_);  // by digest
  std::map<Key, OpenRounds> rounds_ WEFT_GUARDED_BY(mutex_);
  bool stopped_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<Promise<Gathered>> unanswered_ WEFT_GUARDED_BY(mutex_);  // calls after stop()
};

}  // namespace weft::rpc::detail
