// Joining: how an agent becomes a member: from the first try at the store to its published record.
//
// A lease, the kind of world, a rank (where it is fixed), the name, the host (where there is one), the
// record, in that order. While the store cannot be reached it is tried again: agents of a job start in any
// order. A task on the agent's handlers. Thread-safe.
#pragma once

#include <weft/rpc/agent/peer.h>
#include <weft/rpc/membership/place.h>
#include <weft/rpc/membership/roster.h>
#include <weft/rpc/store/lease_keeper.h>

namespace weft::rpc::detail {

class Joining : public std::enable_shared_from_this<Joining> {
 public:
  struct Joined {
    MemberRecord record;                  // as published
    LeaseId lease = no_lease;             // it is published under this
    std::shared_ptr<LeaseKeeper> keeper;  // which is kept up by this; null where it has none
  };
  using MetHost = std::function<void(const MemberRecord&)>;

  // met_host: before the host is asked to attend to this agent. lost: the lease was lost, then or later.
  Joining(std::shared_ptr<AgentCore> core, const Rendezvous& rendezvous, const Place& place, MetHost met_host,
          std::function<void(const Error&)> lost);

  static Task<Joined> run(std::shared_ptr<Joining> self);
  void stop();  // it ends as soon as it can, with whatever error it met last

 private:
  static Task<void> agree_on_world(std::shared_ptr<Joining> self);
  static Task<bool> take_rank(std::shared_ptr<Joining> self);
  static Task<void> take_name(std::shared_ptr<Joining> self);
  static Task<void> await_end(std::shared_ptr<Joining> self, MemberRecord other);
  static Task<void> meet_host(std::shared_ptr<Joining> self);
  template <class T>
  static Task<T> patiently(std::shared_ptr<Joining> self, std::function<Future<T>()> ask);
  std::vector<std::string> published_addresses() const;  // may block
  Future<void> pause();
  void end_pause();
  bool stopped() const;
  Error of_another_world(const std::string& world, const std::string& own) const;
  Error name_taken(const MemberRecord& other) const;
  bool is_host() const { return rendezvous_.rank == 0 && (rendezvous_.fixed_world || place_.with_host); }

  const std::shared_ptr<AgentCore> core_;
  const Rendezvous rendezvous_;
  const Place place_;
  const MetHost met_host_;
  const std::function<void(const Error&)> lost_;

  // The task's.
  MemberRecord record_;
  StoreLease lease_;
  std::shared_ptr<LeaseKeeper> keeper_;

  mutable std::mutex mutex_;  // guards what follows
  bool stopped_ = false;
  std::shared_ptr<Promise<void>> pause_;
};

inline std::string member_key(const std::string& name) {
  return std::string(membership_keys::members) + name;
}

// A store that cannot be reached is tried again for so long.
inline constexpr auto reach_timeout = std::chrono::minutes{5};

}  // namespace weft::rpc::detail
