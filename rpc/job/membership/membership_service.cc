// JobMembership: its registration at the agent.
#include <weft/rpc/call/invoke.h>
#include <weft/rpc/job/membership/job_membership.h>

namespace weft::rpc {

Future<std::vector<MemberEvent>> MemberWatch::next() {
  const auto job = job_.lock();
  if (job == nullptr) return Future<std::vector<MemberEvent>>::made(detail::job_ended());
  return job->next(watcher_);
}

namespace detail {

void MembershipService::check_alive(CallContext&) {
  if (const auto job = job_.lock()) job->check_alive();
}

void MembershipService::lost(CallContext& call, std::string name, std::string reason) {
  if (const auto job = job_.lock()) job->on_loss_report(call.peer().id, name, reason);
}

void MembershipService::host_left(CallContext& call, StoreViewMessage records) {
  if (const auto job = job_.lock()) job->on_host_left(call.peer().id, std::move(records));
}

Future<CollectiveLeader::Gathered> MembershipService::arrive(CallContext& call, CollectiveArrival arrival,
                                                             Buffer value) {
  const auto job = job_.lock();
  if (job == nullptr) throw job_ended();
  return job->arrive(call, arrival, std::move(value));
}

namespace {

// Reports the ends of connections and of the agent to the membership; not involved in calls.
class MembershipHook final : public CallHook {
 public:
  explicit MembershipHook(std::weak_ptr<JobMembership> job) : job_(std::move(job)) {}
  bool knows(std::string_view) const override { return false; }
  void peer_gone(const AgentId& peer, const Error& reason) override {
    if (const auto job = job_.lock()) job->peer_gone(peer, reason);
  }
  void peer_job_failed(const AgentId& peer, const Error& error) override {
    if (const auto job = job_.lock()) job->peer_job_failed(peer, error);
  }
  Future<void> left() override {
    const auto job = job_.lock();
    return job != nullptr ? job->leave() : CallHook::left();
  }
  void shut_down() override {
    if (const auto job = job_.lock()) job->shut_down();
  }

 private:
  std::weak_ptr<JobMembership> job_;
};

}  // namespace

std::shared_ptr<JobMembership> JobMembership::install(const std::shared_ptr<AgentCore>& core,
                                                      const Rendezvous& rendezvous) {
  return install(core, rendezvous, store_access(core, rendezvous));
}

std::shared_ptr<JobMembership> JobMembership::install(const std::shared_ptr<AgentCore>& core,
                                                      const Rendezvous& rendezvous, StoreAccess access) {
  if (rendezvous.fixed_world && rendezvous.rank >= rendezvous.world_size)
    throw Error(ErrorKind::invalid_argument, "rank " + std::to_string(rendezvous.rank) +
                                                 " is not within a world of " +
                                                 std::to_string(rendezvous.world_size));
  if (!core->options().insecure) core->be_of_one_user();
  auto job = std::make_shared<JobMembership>(core, rendezvous, std::move(access));
  core->hooks().add(std::make_shared<MembershipHook>(job));
  serve_object(core->methods(), std::make_shared<MembershipService>(job));
  core->routes().set_directory(
      [weak = std::weak_ptr(job)](const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
        if (const auto known = weak.lock()) return known->find_addresses(name, std::move(done));
        done({});
      });
  return job;
}

}  // namespace detail
}  // namespace weft::rpc
