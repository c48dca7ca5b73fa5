// CollectiveLeader: where the members of a barrier or an all_gather meet: at the first of them, by name.
//
// Each member arrives by a call to it, with its value; the call is answered with the values of all when the
// last has come. The leader alone decides how a round ends, so that all of its members hear the same: it
// fails for all when a deadline of one has passed, when one is lost, leaves or no longer waits; who comes
// later hears so too. Owned by the job's membership. No promise is completed under its mutex. Thread-safe.
#pragma once

#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/membership/roster.h>

#include <mutex>

namespace weft::rpc::detail {

// How a member arrives. A value.
struct CollectiveArrival {
  std::string name;
  std::vector<AgentId> among;  // these lives, in order, each once; the first is the leader
  std::uint64_t round = 0;     // of this name and these members, by the number that all give it
  std::uint64_t seen = 0;      // the version of the store in which the member saw all of them
  std::uint64_t timeout = 0;   // ns; 0: it waits as long as it takes
  std::string type;            // canonical, of the value; empty: a barrier
};
WEFT_CODEC(CollectiveArrival, name, among, round, seen, timeout, type)

std::string to_string(const CollectiveArrival& arrival);  // "barrier 'epoch'"

class WEFT_EXPORT CollectiveLeader : public std::enable_shared_from_this<CollectiveLeader> {
 public:
  using Gathered = std::map<std::string, Buffer>;  // by the member's name

  explicit CollectiveLeader(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}  // of deadlines

  // Of a member in arrival.among. Fails as Job::all_gather says.
  Future<Gathered> arrive(const AgentId& who, const CollectiveArrival& arrival, Buffer value);
  // It waits no more, for this reason. Nothing, where the round is over.
  void give_up(const AgentId& who, const CollectiveArrival& arrival, ErrorKind kind,
               const std::string& reason);
  // What the store says of the members, at a version: rounds end of which a member has gone. Only those are
  // looked at whose members were all seen in this version or before. What is returned tells them, and is run
  // without a lock.
  Callback judge(const Roster& roster, std::uint64_t version);
  void fail_all(const Error& error);  // rounds that are open; later ones may be opened
  // Its agent ends without having left: to the others it is lost, so it tells them nothing any more.
  void stop();

 private:
  using Key = std::pair<std::string, std::vector<AgentId>>;
  struct Timer {  // on the loop
    Loop::TimerId id = 0;
    bool over = false;
  };
  struct Round {
    CollectiveArrival first;
    std::uint64_t seen = 0;    // the latest of its members'
    std::uint64_t judged = 0;  // by this version of the store
    Gathered values;
    std::vector<Promise<Gathered>> waiting;
    std::vector<std::shared_ptr<Timer>> timers;
  };
  struct OpenRounds {
    std::map<std::uint64_t, Round> open;
    std::uint64_t failed = 0;  // rounds below this that are not open have failed, or ended with all members
    std::optional<Error> failure;  // the latest
  };
  struct Ended {
    Round round;
    std::optional<Error> error;  // none: all have come
  };

  void start_timer(const std::shared_ptr<Timer>& timer, const CollectiveArrival& arrival);
  void expire(const CollectiveArrival& arrival);
  Round* find(const CollectiveArrival& arrival);                                            // under the mutex
  Ended fail(const CollectiveArrival& arrival, ErrorKind kind, const std::string& reason);  // likewise
  Ended take(const Key& key, std::uint64_t round);                                          // likewise
  void tell(Ended&& ended) const;

  const std::shared_ptr<Loop> loop_;
  std::mutex mutex_;  // guards what follows
  std::map<Key, OpenRounds> rounds_;
  bool stopped_ = false;
  std::vector<Promise<Gathered>> unanswered_;  // of who has come since
};

}  // namespace weft::rpc::detail
