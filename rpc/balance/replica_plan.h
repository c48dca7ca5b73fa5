// ReplicaPlan: selects the replica for the next call, and ejects replicas that fail. PeerSet uses it. It has
// no I/O, and its callers pass the time.
//
// A replica that fails several times in a row is ejected for a while. After that, one call probes it: success
// reinstates it, failure ejects it for twice as long. If all other replicas are ejected, a failing replica is
// not ejected. A replica that is not connected gets calls only if no replica with a better Reach is
// available.
//
// Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998. The
// bound on loads: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
// Thread-safety: none.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// How the replica for a call is selected.
enum class BalancePolicy : std::uint8_t {
  round_robin,
  least_outstanding,  // the replica with the fewest calls in flight; round robin between equals
  consistent_hash,    // by the call's key; round robin for calls without a key
};

// When a replica is ejected, and for how long.
struct EjectionOptions {
  std::size_t failures = 3;                                     // in a row
  std::chrono::nanoseconds first = std::chrono::seconds{1};     // the first ejection; doubled each time
  std::chrono::nanoseconds longest = std::chrono::seconds{60};  // the maximum of an ejection
};

// How a set selects and ejects replicas. The plan uses the first three.
struct PeerSetOptions {
  BalancePolicy policy = BalancePolicy::round_robin;
  // consistent_hash: if a replica has more than this multiple of the average number of calls in flight, the
  // next replica for the key gets the call. 0: no limit.
  double max_load = 1.25;
  EjectionOptions ejection;
  // refresh: the interval at which the resolver is queried. When a replica fails, the resolver is queried
  // earlier. soonest: the minimum interval between two queries.
  std::chrono::nanoseconds refresh = std::chrono::seconds{30};
  std::chrono::nanoseconds soonest = std::chrono::seconds{1};
  // The maximum time that a call waits for the connection to one replica, if other replicas have not been
  // tried yet. The time until the deadline is divided equally among these replicas, and the wait is never
  // longer than one part. CallOptions::connect_within overrides it.
  std::chrono::nanoseconds connect_within = std::chrono::seconds{1};
};

class WEFT_EXPORT ReplicaPlan {
 public:
  using Id = std::uint64_t;  // identifies a replica while it is in the plan; never reused
  // Outcome: the result of a call for its replica (finish()). unknown: the result says nothing about the
  // replica.
  using Time = Clock::time_point;
  enum class Outcome : std::uint8_t { good, failed, unknown };
  // How well a replica can be reached, the best first. For a call with a key, a connecting replica counts as
  // connected, so that keys do not move when replicas start.
  enum class Reach : std::uint8_t { ready, connecting, failing };  // ready: connected, or never tried

  // A plan without replicas; add them with set().
  explicit ReplicaPlan(PeerSetOptions options) : options_(options) {}

  // Sets the replicas by name. Known replicas keep their state.
  void set(const std::vector<std::string>& names);
  void set_reach(Id id, Reach reach);

  // The replica for one call.
  struct Choice {
    Id id = 0;
    bool probe = false;  // the result decides whether an ejected replica is reinstated
  };
  // Selects the replica for a call, which is in flight from now on. nullopt if all replicas are in `but`.
  std::optional<Choice> choose(Time now, std::optional<std::uint64_t> key = {},
                               const std::vector<Id>& but = {});
  // Reports the result of a call. Ignored for a replica that has left the plan.
  void finish(const Choice& choice, Outcome outcome, Time now);

  // The state of one replica.
  struct Replica {
    Id id = 0;
    std::string name;
    std::uint64_t hash = 0;
    std::size_t outstanding = 0;
    std::size_t failures = 0;   // in a row
    std::size_t ejections = 0;  // in a row
    std::optional<Time> ejected_until;
    bool probing = false;  // a probe is in flight
    Reach reach = Reach::ready;
  };
  // All replicas. find() returns null for a replica that has left the plan.
  const std::vector<Replica>& replicas() const { return replicas_; }
  const Replica* find(Id id) const;

 private:
  Replica* find_mutable(Id id);
  bool available(const Replica& replica, Time now) const;
  Replica* pick(const std::vector<Replica*>& from, std::optional<std::uint64_t> key);
  void eject(Replica& replica, Time now);

  const PeerSetOptions options_;
  std::vector<Replica> replicas_;
  Id last_id_ = 0;
  std::size_t turn_ = 0;
};

}  // namespace weft::rpc
