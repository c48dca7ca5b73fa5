// JobMembership: the Membership of agents that find each other through a store.
//
// It shares the ownership of its agent's core. The objects that make_membership() registers at the core
// (the MembershipHook, the MembershipService, and the directory that finds addresses by name) refer to the
// JobMembership weakly. While the agent is a member, it watches the members' records. The mutex is released
// before a store operation starts and before a promise is completed. Thread-safe.
#pragma once

#include <weft/rpc/call/method.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/job/membership/collective_leader.h>
#include <weft/rpc/job/membership/joining.h>
#include <weft/rpc/job/membership/membership.h>
#include <weft/rpc/job/membership/place.h>
#include <weft/rpc/job/membership/roster.h>

namespace weft::rpc::detail {

class JobMembership final : public Membership, public std::enable_shared_from_this<JobMembership> {
 public:
  JobMembership(std::shared_ptr<AgentCore> core, Rendezvous rendezvous, Place place);

  Future<void> wait_for(std::size_t agents) override;
  std::vector<Member> members() const override;
  std::unique_ptr<MemberWatch> watch() override;
  Future<void> leave() override;
  Future<void> others_left(std::chrono::nanoseconds timeout) override;
  std::string name_of(std::size_t rank) const override;
  Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type,
                                               Buffer value) override;
  Future<void> quiesce(CollectiveOptions options) override;
  std::shared_ptr<Store> store() const override { return place_.store; }
  void shut_down() override;

  void peer_gone(const AgentId& peer, const Error& reason);
  void peer_world_failed(const AgentId& peer, const Error& error);
  void attend() const;  // on the host: a joining member has called; throws the error that ended the job
  void told_of_loss(const AgentId& teller, const std::string& name, const std::string& reason);
  // On the leader of a collective: a member has called. Throws if this agent is not the leader.
  Future<CollectiveLeader::Gathered> arrive(CallContext& call, const CollectiveArrival& arrival,
                                            Buffer value);
  void find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done);

 private:
  // leaving: this member has no work in the job any more, but the store does not have its `left` record yet.
  enum class Phase { apart, joining, joined, leaving, left, ended };
  using Events = std::vector<MemberEvent>;
  struct Waiter {
    std::size_t agents = 0;  // 0: waits until all others have left
    std::shared_ptr<Promise<void>> promise;
  };
  struct Onlooker {
    bool begun = false;                        // next() has returned the present members
    Roster::Records seen;                      // the records that it has seen of members that changed since
    std::shared_ptr<Promise<Events>> promise;  // a next() that waits; null: none
  };
  // The rounds of one collective (name and members).
  struct OwnRounds {
    CollectiveMembers members;
    std::uint64_t next = 0;  // the number of the next round
  };
  class Watch;

  bool is_host() const { return rendezvous_.rank == 0 && (rendezvous_.fixed_world || place_.with_host); }
  const std::string& own_name() const { return core_->id().name; }

  void begin_joining();
  void joined(Result<Joining::Joined>&& result);

  // Watch the records of the other members.
  void look();
  void look_after(std::chrono::nanoseconds pause);  // `looking_` is set until then
  void looked(Result<StoreChanges>&& result);
  bool take(const StoreChanges& changes);  // false: this agent is no longer a member
  void tell_routes(const MemberEvent& event) const;
  void not_seen(const Error& error);

  // Calls that wait.
  std::exception_ptr why_not() const WEFT_REQUIRES(mutex_);  // the error with which waits fail; null: none
  std::vector<std::string> awaited() const WEFT_REQUIRES(mutex_);
  bool nobody_works() const WEFT_REQUIRES(mutex_);  // every other member only serves or is gone
  Future<void> add_waiter(std::size_t agents, std::chrono::nanoseconds timeout);
  void end_waiter(std::uint64_t id, ErrorKind kind);
  std::string remaining_members_text() const WEFT_REQUIRES(mutex_);
  Future<Events> next(const std::shared_ptr<Onlooker>& onlooker);
  Events events_for(Onlooker& onlooker) const WEFT_REQUIRES(mutex_);
  void answer();
  void released();
  enum class Spared { nobody, serving_only };
  void fail_all(const Error& error, Spared spared = Spared::nobody);
  void publish_state();
  void published_state(const MemberRecord& next, Result<StoreExchange>&& result);
  // After a compare_set of this member's record that has not stored `desired`: adopts the stored record if it
  // is a record of this incarnation, and returns true if the caller should try again with it.
  bool adopt(const std::optional<std::string>& actual) WEFT_REQUIRES(mutex_);
  void store_is_gone();

  // Collectives.
  // The incarnations of the members that take part. Throws if the options are invalid, or if a member is
  // unknown or gone.
  CollectiveMembers incarnations_among(const CollectiveOptions& options) const WEFT_REQUIRES(mutex_);
  CollectiveArrival next_arrival(const CollectiveOptions& options, std::string type);
  void judge_collectives() const;

  // End this member's membership, and process the ends of other members.
  bool has_left() const WEFT_REQUIRES(mutex_) { return phase_ == Phase::leaving || phase_ == Phase::left; }
  void publish_left(std::shared_ptr<Promise<void>> done);
  void write_left();
  Future<StoreLease> remembrance();
  void wrote_left(const std::string& text, Result<StoreExchange>&& result);
  void left(Result<void>&& published);
  void after_left(const std::shared_ptr<Promise<void>>& done);
  void judge(const AgentId& gone, const Error& reason, const Roster& roster);
  void announce_loss(const MemberRecord& lost, const Error& reason, const Roster& roster);
  void fail(const Error& error);
  void lose_membership(const Error& reason);

  const std::shared_ptr<AgentCore> core_;
  const Rendezvous rendezvous_;
  const Place place_;
  const std::shared_ptr<Loop> loop_;
  const std::shared_ptr<CollectiveLeader> leader_;
  CancelScope arrivals_;  // this member's calls to leaders: cancelled when it is no longer a member

  mutable Mutex mutex_;
  Phase phase_ WEFT_GUARDED_BY(mutex_) = Phase::apart;
  std::shared_ptr<Joining> joining_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr join_error_ WEFT_GUARDED_BY(mutex_);
  // The error of the world, or of this agent's membership.
  std::optional<Error> failure_ WEFT_GUARDED_BY(mutex_);
  // The record of the host; nullopt: this agent is the host, or the host is unknown.
  std::optional<MemberRecord> host_ WEFT_GUARDED_BY(mutex_);
  bool store_gone_ WEFT_GUARDED_BY(mutex_) = false;  // the host, which kept the store, has left
  // `record` is the record that the store is known to have.
  Joining::Joined self_ WEFT_GUARDED_BY(mutex_);
  bool publishing_ WEFT_GUARDED_BY(mutex_) = false;  // publish_state() is in progress
  // The layers are releasing their references at other members, or have released them.
  bool releasing_ WEFT_GUARDED_BY(mutex_) = false;
  bool released_ WEFT_GUARDED_BY(mutex_) = false;            // the layers have released these references
  bool waited_for_release_ WEFT_GUARDED_BY(mutex_) = false;  // release_timeout has expired
  Roster roster_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t version_ WEFT_GUARDED_BY(mutex_) = 0;  // the version of the roster; 0: not known yet
  bool looking_ WEFT_GUARDED_BY(mutex_) = false;
  std::uint64_t turn_ WEFT_GUARDED_BY(mutex_) = 0;  // the number of the current look
  Future<bool> look_ WEFT_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> blind_since_ WEFT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Waiter> waiters_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t last_waiter_ WEFT_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<Onlooker>> onlookers_ WEFT_GUARDED_BY(mutex_);
  // The calls of leave() while this agent joins, or while it is leaving.
  std::vector<std::shared_ptr<Promise<void>>> leavers_ WEFT_GUARDED_BY(mutex_);
  Clock::time_point leave_until_ WEFT_GUARDED_BY(mutex_);  // then leave() fails if the store is unavailable
  // By the name of the collective, and the digest of its members.
  std::map<std::pair<std::string, std::string>, OwnRounds> rounds_ WEFT_GUARDED_BY(mutex_);
  bool expects_all_ WEFT_GUARDED_BY(mutex_) = false;  // the leader knows all members of the fixed world
};

// As rpc::make_membership(), with a given Place.
WEFT_EXPORT std::shared_ptr<Membership> make_membership(const std::shared_ptr<AgentCore>& core,
                                                        const Rendezvous& rendezvous, Place place);

Error loss_of(const std::string& name, const std::string& reason);
Error job_ended();
Error error_of(const std::exception_ptr& error);  // the exception of a failed future, as an Error
// Whether the same operation of a store may succeed later.
bool is_outage(const Error& error);
inline constexpr auto store_pause = std::chrono::milliseconds{500};  // before the store is tried again

// The methods that members serve to each other, as "weft.membership". They run on the loop of the connection
// to the caller. So the host runs the calls of a member before it processes the end of the member's
// connection.
class MembershipService {
 public:
  explicit MembershipService(std::weak_ptr<JobMembership> job) : job_(std::move(job)) {}
  void attend(CallContext& call);
  void lost(CallContext& call, std::string name, std::string reason);
  Future<CollectiveLeader::Gathered> arrive(CallContext& call, CollectiveArrival arrival, Buffer value);

  using Service = rpc::Service<
      "weft.membership",
      Method<"attend", &MembershipService::attend, idempotent, non_blocking, background, resumable>,
      Method<"lost", &MembershipService::lost, idempotent, non_blocking, background, resumable>,
      Method<"arrive", &MembershipService::arrive, non_blocking, background, resumable>>;

 private:
  std::weak_ptr<JobMembership> job_;
};

}  // namespace weft::rpc::detail
