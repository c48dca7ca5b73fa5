// JobMembership: barriers and all_gathers, as a member and as their leader.
#include <weft/rpc/job/membership/job_membership.h>

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/job/membership/quiescence.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

// At the deadline, the leader replies and names the missing members. If it does not, the member's call fails
// after this additional time, in which a busy leader can still reply.
constexpr auto leader_grace = std::chrono::seconds{5};

// The error for a member that is known, but has left or was lost.
Error gone(const MemberRecord& member) {
  if (member.state == MemberState::left)
    return Error(ErrorKind::shut_down, "'" + member.name + "' has left the job");
  return Error(ErrorKind::peer_lost, "'" + member.name + "' was lost");
}

// A member's call to the leader: first without the list of members, and if the leader asks for it, with it.
class LeaderCall : public std::enable_shared_from_this<LeaderCall> {
 public:
  using Gathered = CollectiveLeader::Gathered;

  LeaderCall(Peer peer, CollectiveArrival arrival, Buffer value, const std::shared_ptr<Loop>& loop)
      : peer_(std::move(peer)), arrival_(std::move(arrival)), value_(std::move(value)), promise_(loop) {}

  Future<Gathered> start(bool with_members) {
    promise_.on_cancel([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->cancel();
    });
    auto future = promise_.future();
    call(with_members);
    return future;
  }

 private:
  void call(bool with_members) {
    CollectiveArrival arrival = arrival_;
    if (!with_members) arrival.among.clear();
    auto current = peer_.call<&MembershipService::arrive>(arrival, value_)
                       .then([self = shared_from_this(), with_members](Result<Gathered>&& all) {
                         self->answered(std::move(all), with_members);
                         return true;
                       });
    MutexLock lock(mutex_);
    if (!cancelled_ && with_members >= with_members_) {  // the second call may have begun before
      current_ = std::move(current);
      with_members_ = with_members;
      return;
    }
    lock.unlock();
    current.cancel();
  }
  void answered(Result<Gathered>&& all, bool with_members) {
    const ErrorKind kind = all.ok() ? ErrorKind::internal : error_kind(all.error());
    // A leader of an earlier version of weft, which knows no digest, refuses the call as an invalid argument.
    if (!with_members && (kind == ErrorKind::not_found || kind == ErrorKind::invalid_argument))
      return call(true);
    promise_.complete(std::move(all));
  }
  void cancel() {
    Future<bool> current;
    {
      MutexLock lock(mutex_);
      cancelled_ = true;
      current = std::move(current_);
    }
    current.cancel();
  }

  const Peer peer_;
  const CollectiveArrival arrival_;
  const Buffer value_;
  Promise<Gathered> promise_;
  Mutex mutex_;
  bool cancelled_ WEFT_GUARDED_BY(mutex_) = false;
  bool with_members_ WEFT_GUARDED_BY(mutex_) = false;
  Future<bool> current_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace

CollectiveMembers JobMembership::incarnations_among(const CollectiveOptions& options) const {
  std::vector<std::string> names = options.among;
  if (names.empty()) {
    if (!rendezvous_.fixed_world)
      throw Error(
          ErrorKind::invalid_argument,
          "CollectiveOptions::among is empty, expected the members of an elastic world that take part");
    for (const auto& [name, member] : roster_.members())
      if (member->state != MemberState::claimed) names.push_back(name);
    if (names.size() < rendezvous_.world_size)
      throw Error(ErrorKind::failed_precondition, std::to_string(names.size()) + " of " +
                                                      std::to_string(rendezvous_.world_size) +
                                                      " members are known: await wait_for() first");
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (!std::binary_search(names.begin(), names.end(), own_name()))
    throw Error(ErrorKind::invalid_argument, "'" + own_name() + "' is not in CollectiveOptions::among");
  CollectiveMembers incarnations;
  for (const std::string& name : names) {
    const MemberRecord* member = roster_.find(name);
    if (member == nullptr || member->state == MemberState::claimed)
      throw Error(ErrorKind::not_found, "'" + name + "' is not a known member of this job");
    if (member->gone()) throw gone(*member);
    incarnations.push_back(member->id());
  }
  return incarnations;
}

CollectiveArrival JobMembership::next_arrival(const CollectiveOptions& options, std::string type) {
  MutexLock lock(mutex_);
  if (const auto error = why_not()) std::rethrow_exception(error);
  if (store_gone_) throw host_has_left();
  if (phase_ != Phase::joined || version_ == 0)
    throw Error(ErrorKind::failed_precondition,
                "'" + own_name() + "' has not joined its job: await wait_for() first");
  CollectiveArrival arrival{.name = options.name, .among = incarnations_among(options), .seen = version_};
  arrival.type = std::move(type);
  arrival.digest = digest_of(arrival.among);
  OwnRounds& rounds = rounds_[{arrival.name, arrival.digest}];
  if (rounds.members.empty()) rounds.members = arrival.among;
  arrival.round = rounds.next++;
  const auto timeout = options.timeout.value_or(core_->default_timeout());
  if (timeout != no_timeout) {
    const auto longest = std::chrono::nanoseconds(no_timeout - leader_grace).count();
    arrival.timeout =
        static_cast<std::uint64_t>(std::clamp<std::chrono::nanoseconds::rep>(timeout.count(), 1, longest));
  }
  return arrival;
}

Future<CollectiveLeader::Gathered> JobMembership::gather(CollectiveOptions options, std::string type,
                                                         Buffer value) {
  using Gathered = CollectiveLeader::Gathered;
  auto arrival = capture([&] { return next_arrival(options, std::move(type)); });
  if (!arrival.ok()) return Future<Gathered>::made(arrival.error());
  const AgentId leader = arrival.value().among.front();
  CallOptions call{.timeout = no_timeout};
  if (const auto timeout = arrival.value().timeout; timeout != 0)
    call.timeout = std::chrono::nanoseconds(timeout) + leader_grace;
  const std::string what = to_string(arrival.value());
  const Peer peer = Peer(core_, core_->routes().to_name(leader.name)).only(leader).with(call).with(arrivals_);
  return std::make_shared<LeaderCall>(peer, std::move(arrival).get(), std::move(value), loop_)
      ->start(leader == core_->id())
      .then([weak = weak_from_this(), what, leader,
             arrivals = arrivals_](Result<Gathered>&& all) -> Result<Gathered> {
        if (all.ok()) return std::move(all);
        std::exception_ptr why;
        if (const auto job = weak.lock(); job != nullptr && arrivals.cancelled()) {
          MutexLock lock(job->mutex_);
          why = job->why_not();
        }
        try {
          std::rethrow_exception(why != nullptr ? why : all.error());
        } catch (const RemoteError& remote) {
          return Error(remote.kind(), remote.detail());
        } catch (const Error& error) {
          return Error(error.kind(), what + ", led by '" + leader.name + "': " + error.what());
        }
      });
}

Future<void> JobMembership::quiesce(CollectiveOptions options) {
  return Quiescence::of(core_, shared_from_this(), std::move(options));
}

// --- On the leader ---

Future<CollectiveLeader::Gathered> JobMembership::arrive(CallContext& call, const CollectiveArrival& arrival,
                                                         Buffer value) {
  const AgentId member = call.peer().id;
  const auto& among = arrival.among;
  const bool sound = std::adjacent_find(among.begin(), among.end(), [](const auto& a, const auto& b) {
                       return a.name >= b.name;
                     }) == among.end();
  if (!sound || (among.empty() ? arrival.digest.empty() : among.front() != core_->id()))
    throw Error(ErrorKind::invalid_argument,
                "'" + own_name() + "' is not the leader of " + to_string(arrival));
  {
    MutexLock lock(mutex_);
    if (const auto error = why_not(); error != nullptr && phase_ != Phase::ended)
      std::rethrow_exception(error);
    if (store_gone_) throw host_has_left();
  }
  auto all = leader_->arrive(member, arrival, std::move(value));
  CollectiveArrival round = arrival;  // without the list
  if (round.digest.empty()) round.digest = digest_of(among);
  round.among.clear();
  // The call exists until its cancellation has been reported.
  call.on_cancel(
      [weak = std::weak_ptr(leader_), member, round, incoming = static_cast<IncomingCall*>(&call)] {
        const auto leader = weak.lock();
        if (leader == nullptr) return;
        if (incoming->caller_is_lost()) {
          leader->give_up(member, round, ErrorKind::peer_lost, "was lost: its connection has ended");
        } else {
          leader->give_up(member, round, ErrorKind::aborted, "no longer waits");
        }
      });
  judge_collectives();
  return all;
}

void JobMembership::judge_collectives() const {
  Callback deliver;
  {
    MutexLock lock(mutex_);
    deliver = leader_->judge(roster_, version_);
  }
  deliver();
}

}  // namespace weft::rpc::detail
