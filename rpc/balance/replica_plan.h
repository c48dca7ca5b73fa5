// ReplicaPlan: which of several replicas gets the next call, and which are left out because they fail. Pure
// state with an explicit clock: PeerSet carries it out.
//
// A replica that fails several times in a row is ejected for a while. When that is over one call probes it:
// success takes it back, failure ejects it for twice as long. The last one that is not ejected never is. A
// replica that is not connected gets calls only while no better one is left (Reach).
// Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; its
// bound on loads: Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", 2018.
// Thread-safety: none.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// Which replica gets a call.
enum class BalancePolicy : std::uint8_t {
  round_robin,
  least_outstanding,  // who has the fewest calls under way, in turn where several have
  consistent_hash,    // who the call's key leads to; calls without a key take turns
};

// When a replica is ejected, and for how long.
struct EjectionOptions {
  std::size_t failures = 3;                                     // in a row
  std::chrono::nanoseconds first = std::chrono::seconds{1};     // the first time; doubled each time after it
  std::chrono::nanoseconds longest = std::chrono::seconds{60};  // the limit
};

// How the plan selects replicas.
struct BalanceOptions {
  BalancePolicy policy = BalancePolicy::round_robin;
  // consistent_hash: a replica with more than this times the average of calls under way passes its key on to
  // the next in the key's order; 0: never.
  double max_load = 1.25;
  EjectionOptions ejection;
};

class WEFT_EXPORT ReplicaPlan {
 public:
  using Id = std::uint64_t;  // of a replica as long as it is in the plan; never used again
  // `Outcome`: how a call ended, as finish() takes it.
  using Time = Clock::time_point;
  enum class Outcome : std::uint8_t { good, failed, unknown };
  // How a replica can be reached, the best first. A key leads to a replica that is being connected as to one
  // that is connected, else keys would move when replicas start.
  enum class Reach : std::uint8_t { ready, connecting, failing };  // ready: connected, or never tried

  // Without replicas: see set().
  explicit ReplicaPlan(BalanceOptions options) : options_(options) {}

  // Replicas by name. Those that were there before keep what is known of them.
  void set(const std::vector<std::string>& names);
  void set_reach(Id id, Reach reach);

  // The replica for one call.
  struct Choice {
    Id id = 0;
    bool probe = false;  // it decides whether an ejected replica is taken back
  };
  // The replica for a call, which is under way from here on. Nothing where all are in `but`.
  std::optional<Choice> choose(Time now, std::optional<std::uint64_t> key = {},
                               const std::vector<Id>& but = {});
  // How it ended. unknown: says nothing of the replica. A replica that has left the plan is forgotten.
  void finish(const Choice& choice, Outcome outcome, Time now);

  // What the plan knows of one replica.
  struct Replica {
    Id id = 0;
    std::string name;
    std::uint64_t hash = 0;
    std::size_t outstanding = 0;
    std::size_t failures = 0;   // in a row
    std::size_t ejections = 0;  // in a row
    std::optional<Time> ejected_until;
    bool probing = false;  // a call is under way that decides
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

  const BalanceOptions options_;
  std::vector<Replica> replicas_;
  Id last_id_ = 0;
  std::size_t turn_ = 0;
};

}  // namespace weft::rpc
