// JobMembership: the Membership of agents that meet by a store, and what they tell each other.
//
// It refers to its agent's core; the core's hook, served object and directory refer back weakly. No store
// operation is begun and no promise completed under its mutex. Thread-safe.
#pragma once

#include <weft/rpc/agent/membership.h>
#include <weft/rpc/agent/method.h>
#include <weft/rpc/agent/peer.h>
#include <weft/rpc/membership/roster.h>
#include <weft/rpc/store/store.h>

namespace weft::rpc::detail {

class JobMembership final : public Membership, public std::enable_shared_from_this<JobMembership> {
 public:
  struct Place {  // where the store is
    std::shared_ptr<Store> store;
    bool with_host = false;         // kept by the host's agent: it ends with it
    std::function<void()> close;    // ends everybody's waits; where it is kept here
    std::function<void()> discard;  // of a file: removes it
  };

  JobMembership(std::shared_ptr<AgentCore> core, Rendezvous rendezvous, Place place);

  Future<void> wait_for(std::size_t agents) override;
  Future<void> leave() override;
  Future<void> others_left() override;
  void shut_down() override;

  void peer_gone(const AgentId& peer, const Error& reason);
  void attend() const;  // on the host, for a member that joins; throws what has ended the world
  void told_of_loss(const AgentId& teller, const std::string& name, const std::string& reason);
  void find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done);

 private:
  enum class Phase { apart, joining, joined, left, ended };
  struct Waiter {
    std::size_t agents = 0;  // 0: all others have left
    std::shared_ptr<Promise<void>> promise;
  };

  bool is_host() const { return rendezvous_.rank == 0; }
  Member self(MemberState state) const;
  std::vector<std::string> published_addresses() const;  // may block
  std::string member_key(const std::string& name) const {
    return std::string(membership_keys::members) + name;
  }

  // Joining: a task on the handlers' threads.
  static Task<void> join(std::shared_ptr<JobMembership> self);
  static Task<void> take_name(std::shared_ptr<JobMembership> self);
  static Task<void> take_rank(std::shared_ptr<JobMembership> self);
  static Task<void> meet_host(std::shared_ptr<JobMembership> self);
  static Task<StoreExchange> exchange(std::shared_ptr<JobMembership> self, std::string key,
                                      std::optional<std::string> expected, std::string value);
  void joined(Result<void>&& result);
  Future<void> pause();
  void end_pause();
  bool stopping() const;

  // Waiting.
  std::vector<std::string> awaited() const;  // under the mutex
  Future<void> add_waiter(std::size_t agents);
  void cancel_waiter(std::uint64_t id);
  void watch();
  void viewed(Result<StoreChanges>&& result);
  void answer_waiters();
  void publish_state();
  void fail_waiters(const Error& error);
  void store_is_gone();

  // Ends.
  void publish_left(std::shared_ptr<Promise<void>> done);
  void judge(const AgentId& gone, const Error& reason, const Roster& roster);
  void announce_loss(const Member& lost, const Error& reason, const Roster& roster);
  void fail(const Error& error);

  const std::shared_ptr<AgentCore> core_;
  const Rendezvous rendezvous_;
  const Place place_;
  const std::shared_ptr<Loop> loop_;

  mutable std::mutex mutex_;  // guards what follows
  Phase phase_ = Phase::apart;
  bool stop_joining_ = false;
  std::exception_ptr join_error_;
  std::vector<std::string> addresses_;        // as published
  MemberState state_ = MemberState::claimed;  // as published last, before leaving
  bool publishing_ = false;                   // that is under way
  std::optional<Error> failure_;              // of the world
  std::optional<Member> host_;                // where that is not this agent, once it is known
  bool store_gone_ = false;                   // the host has left, and the store with it
  Roster roster_;
  StoreView seen_;             // what that was made of
  std::uint64_t version_ = 0;  // of the roster; 0: none yet
  std::map<std::uint64_t, Waiter> waiters_;
  std::uint64_t last_waiter_ = 0;
  bool watching_ = false;
  std::uint64_t turn_ = 0;  // of the watch
  Future<bool> watch_;
  std::shared_ptr<Promise<void>> pause_;
  std::vector<std::shared_ptr<Promise<void>>> leavers_;  // leave() was called while joining
};

// What members serve to each other, as "weft.membership". Both run on the caller's loop, so that on the host
// what a member asked before its connection ended has been done when that end is noticed.
class MembershipService {
 public:
  explicit MembershipService(std::weak_ptr<JobMembership> job) : job_(std::move(job)) {}
  void attend(CallContext& call);
  void lost(CallContext& call, std::string name, std::string reason);

  using Service =
      rpc::Service<"weft.membership", Method<"attend", &MembershipService::attend, idempotent, non_blocking>,
                   Method<"lost", &MembershipService::lost, idempotent, non_blocking>>;

 private:
  std::weak_ptr<JobMembership> job_;
};

}  // namespace weft::rpc::detail
