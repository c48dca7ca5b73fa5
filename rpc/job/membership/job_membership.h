// JobMembership: the membership of an agent in a job whose agents find each other through a store. Programs
// use it by way of Job (rpc/job/job.h).
//
// An agent that joins claims its name in the store (in a fixed world also its rank) and publishes its
// addresses. Then it can resolve names of members. Each member renews a lease; a member whose lease expires
// is lost. In a fixed world, or if an agent keeps the store, rank 0 is the host. All members wait for the
// host to join. The host also watches connections, so that a death is detected at once. If a fixed world
// loses a member, the job fails on every member with an error that names the lost member
// (AgentCore::fail_job). In a fixed world, a name can be claimed only once. In an elastic world the other
// members are notified (MemberWatch), and a new incarnation may claim the name. If an agent's Rendezvous
// states the other kind of world or another size than the job has, the agent cannot join.
//
// It shares the ownership of its agent's core; the Agent owns it (Agent::attached()). The objects that
// install() registers at the core (the MembershipHook, the MembershipService, and the directory that finds
// addresses by name) refer to it weakly. While the agent is a member, it watches the members' records. The
// mutex is released before a store operation starts and before a promise is completed. Thread-safe.
#pragma once

#include <weft/rpc/call/method.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/job/membership/collective_leader.h>
#include <weft/rpc/job/membership/joining.h>
#include <weft/rpc/job/membership/member.h>
#include <weft/rpc/job/membership/rendezvous.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/membership/store_access.h>
#include <weft/rpc/job/store/store_service.h>

namespace weft::rpc::detail {

// A MemberWatch of this member.
struct Watcher {
  bool begun = false;    // next() has returned the present members
  Roster::Records seen;  // the records that it has seen of members that changed since
  // A next() that waits; null: none.
  std::shared_ptr<Promise<std::vector<MemberEvent>>> promise;
};

class WEFT_EXPORT JobMembership final : public std::enable_shared_from_this<JobMembership> {
 public:
  JobMembership(std::shared_ptr<AgentCore> core, Rendezvous rendezvous, StoreAccess access);

  // Makes the agent a member-to-be; call it before core->listen(). If the store's URL is an agent's address,
  // rank 0 serves the store on its own agent, whose options.listen contains that address. Throws
  // invalid_argument.
  static std::shared_ptr<JobMembership> install(const std::shared_ptr<AgentCore>& core,
                                                const Rendezvous& rendezvous);
  static std::shared_ptr<JobMembership> install(const std::shared_ptr<AgentCore>& core,
                                                const Rendezvous& rendezvous, StoreAccess access);

  const Rendezvous& rendezvous() const { return rendezvous_; }
  // The first call joins the job. The future completes when `agents` members have joined, including this one.
  // In a fixed world members that have left count; in an elastic world only present members count. While the
  // store cannot be reached, wait_for() retries for five minutes. already_exists: another agent has the name
  // or the rank. In an elastic world, that agent is alive, because wait_for() waits until the lease of a dead
  // agent has expired. failed_precondition: this agent's Rendezvous states another kind of world (fixed or
  // elastic) or another size than the job has. deadline_exceeded after `timeout`, as Job::wait_for() does.
  // The next call after an error of joining joins again.
  Future<void> wait_for(std::size_t agents, std::chrono::nanoseconds timeout = no_timeout);
  // The present members, as the store last reported them. Empty until this agent has joined.
  std::vector<Member> members() const;
  // The name of the member with this rank in a fixed world, present or gone, as last seen. Throws not_found
  // if no member with that rank is known, failed_precondition if the world is not fixed.
  std::string name_of(std::size_t rank) const;
  // Watches the members.
  std::unique_ptr<MemberWatch> watch();
  Future<std::vector<MemberEvent>> next(const std::shared_ptr<Watcher>& watcher);  // MemberWatch::next()
  // Leaves the job in an orderly way, before the agent drains, so that the other members do not consider it
  // lost. If the host, which keeps the store, leaves a fixed world that all members have joined, it sends the
  // last records to the others first: their joins complete, and they leave without the store. Their other
  // waits fail with unavailable, so a host whose members need the job calls others_left() first. While the
  // store cannot be reached, leave() tries again for Rendezvous::lease. If it fails, this agent is still a
  // member, and leave() may be called again.
  Future<void> leave();
  // For a member that only serves: completes when this member has left. The member leaves when all members
  // have joined (in a fixed world: world_size members), no other member has work left, and all serving
  // members have released their references. The host leaves last. Fails if the world fails. After `timeout`
  // it fails with deadline_exceeded, and the error names the members that have not left. After that error,
  // and after cancel(), this agent is still a member.
  Future<void> others_left(std::chrono::nanoseconds timeout);
  // Runs a barrier or an all_gather. Returns the members' values, each packed (codec/packed.h), by name.
  // type: the canonical type of the value, the same on all members; empty: a barrier. Fails as
  // Job::all_gather does.
  Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type, Buffer value);
  Future<void> quiesce(CollectiveOptions options);  // as Job::quiesce
  std::shared_ptr<Store> store() const;  // null until this agent has joined, if it has a program's store
  void shut_down();                      // all pending futures fail with shut_down

  void peer_gone(const AgentId& peer, const Error& reason);
  void peer_job_failed(const AgentId& peer, const Error& error);
  void check_alive() const;  // on the host: a joining member has called; throws the error that ended the job
  void on_loss_report(const AgentId& reporter, const std::string& name, const std::string& reason);
  void on_host_left(const AgentId& reporter, StoreViewMessage records);
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
  // The rounds of one collective (name and members).
  struct OwnRounds {
    CollectiveMembers members;
    std::uint64_t next = 0;  // the number of the next round
  };

  bool is_host() const { return rendezvous_.rank == 0 && (rendezvous_.fixed_world || access_.with_host); }
  const std::string& own_name() const { return core_->id().name; }

  void begin_joining();
  void joined(Result<Joining::Joined>&& result);

  // Watch the records of the other members.
  void look();
  void look_after(std::chrono::nanoseconds pause);  // `looking_` is set until then
  void looked(Result<StoreChanges>&& result);
  bool take(const StoreChanges& changes);  // false: this agent is no longer a member
  void update_routes(const MemberEvent& event) const;
  void not_seen(const Error& error);

  // Calls that wait.
  std::exception_ptr why_not() const WEFT_REQUIRES(mutex_);  // the error with which waits fail; null: none
  std::vector<std::string> awaited() const WEFT_REQUIRES(mutex_);
  bool no_member_works() const WEFT_REQUIRES(mutex_);  // every other member only serves or is gone
  Future<void> add_waiter(std::size_t agents, std::chrono::nanoseconds timeout);
  void end_waiter(std::uint64_t id, ErrorKind kind);
  std::string remaining_members_text() const WEFT_REQUIRES(mutex_);
  std::string missing_members_text(std::size_t agents) const WEFT_REQUIRES(mutex_);
  Events events_for(Watcher& watcher) const WEFT_REQUIRES(mutex_);
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
  Error host_has_left() const WEFT_REQUIRES(mutex_);

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
  void after_left(std::function<void()> done);
  Future<void> announce_end(const StoreView& records) const;
  void judge(const AgentId& peer, const Error& reason, const Roster& roster);
  void announce_loss(const MemberRecord& lost, const Error& reason, const Roster& roster);
  void fail(const Error& error);
  void lose_membership(const Error& reason);

  const std::shared_ptr<AgentCore> core_;
  const Rendezvous rendezvous_;
  const StoreAccess access_;
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
  // The records that the host has sent when it left, if this member had not joined yet.
  std::optional<StoreViewMessage> last_records_ WEFT_GUARDED_BY(mutex_);
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
  std::vector<std::weak_ptr<Watcher>> watchers_ WEFT_GUARDED_BY(mutex_);
  // The calls of leave() while this agent joins, or while it is leaving.
  std::vector<std::shared_ptr<Promise<void>>> leavers_ WEFT_GUARDED_BY(mutex_);
  Clock::time_point leave_until_ WEFT_GUARDED_BY(mutex_);  // then leave() fails if the store is unavailable
  // By the name of the collective, and the digest of its members.
  std::map<std::pair<std::string, std::string>, OwnRounds> rounds_ WEFT_GUARDED_BY(mutex_);
  bool expects_all_ WEFT_GUARDED_BY(mutex_) = false;  // the leader knows all members of the fixed world
};

Error loss_of(const std::string& name, const std::string& reason);
Error job_ended();
// Whether the same operation of a store may succeed later.
bool is_outage(const Error& error);
inline constexpr auto store_pause = std::chrono::milliseconds{500};  // before the store is tried again

// The methods that members serve to each other, as "weft.membership". They run on the loop of the connection
// to the caller. So the host runs the calls of a member before it processes the end of the member's
// connection.
class MembershipService {
 public:
  explicit MembershipService(std::weak_ptr<JobMembership> job) : job_(std::move(job)) {}
  void check_alive(CallContext& call);
  void lost(CallContext& call, std::string name, std::string reason);
  void host_left(CallContext& call, StoreViewMessage records);
  Future<CollectiveLeader::Gathered> arrive(CallContext& call, CollectiveArrival arrival, Buffer value);

  using Service = rpc::Service<
      "weft.membership",
      Method<"check_alive", &MembershipService::check_alive, idempotent, non_blocking, background>,
      Method<"lost", &MembershipService::lost, idempotent, non_blocking, background>,
      Method<"host_left", &MembershipService::host_left, idempotent, non_blocking, background>,
      Method<"arrive", &MembershipService::arrive, non_blocking, background>>;

 private:
  std::weak_ptr<JobMembership> job_;
};

}  // namespace weft::rpc::detail
