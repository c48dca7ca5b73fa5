#include <weft/rpc/agent/membership.h>

#include <weft/rpc/agent/invoke.h>
#include <weft/rpc/membership/job_membership.h>
#include <weft/rpc/store/file_store.h>
#include <weft/rpc/store/memory_store.h>
#include <weft/rpc/store/remote_store.h>
#include <weft/rpc/store/store_service.h>

namespace weft::rpc {
namespace detail {

void MembershipService::attend(CallContext&) {
  if (const auto job = job_.lock()) job->attend();
}

void MembershipService::lost(CallContext& call, std::string name, std::string reason) {
  if (const auto job = job_.lock()) job->told_of_loss(call.peer().id, name, reason);
}

namespace {

// Tells the membership of connections that ended; takes no part in calls.
class MembershipHook final : public CallHook {
 public:
  explicit MembershipHook(std::weak_ptr<JobMembership> job) : job_(std::move(job)) {}
  bool knows(std::string_view) const override { return false; }
  void peer_gone(const AgentId& peer, const Error& reason) override {
    if (const auto job = job_.lock()) job->peer_gone(peer, reason);
  }

 private:
  std::weak_ptr<JobMembership> job_;
};

JobMembership::Place place_of_store(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous) {
  if (rendezvous.store.starts_with("file:")) {
    auto store = std::make_shared<FileStore>(FileStore::path_of(rendezvous.store));
    return {store, false, [store] { store->close(); }, [store] { store->discard(); }};
  }
  const Address address = Address::parse(rendezvous.store);
  if (rendezvous.rank != 0)
    return {std::make_shared<RemoteStore>(Peer(core, core->route_to(rendezvous.store))), true, nullptr,
            nullptr};
  if (core->options().listen.empty())
    throw Error(ErrorKind::invalid_argument, "rank 0 keeps the store at " + address.text() +
                                                 ": its options.listen must hold that address");
  auto store = std::make_shared<MemoryStore>(core->pick_loop());
  serve_store(*core, store);
  return {store, true, [store] { store->close(); }, nullptr};
}

}  // namespace
}  // namespace detail

std::shared_ptr<Membership> make_membership(std::shared_ptr<AgentCore> core, const Rendezvous& rendezvous) {
  if (rendezvous.fixed_world && rendezvous.rank >= rendezvous.world_size)
    throw Error(ErrorKind::invalid_argument, "rank " + std::to_string(rendezvous.rank) +
                                                 " is not within a world of " +
                                                 std::to_string(rendezvous.world_size));
  auto job =
      std::make_shared<detail::JobMembership>(core, rendezvous, detail::place_of_store(core, rendezvous));
  core->add_hook(std::make_shared<detail::MembershipHook>(job));
  detail::serve_object(*core, std::make_shared<detail::MembershipService>(job));
  core->set_directory(
      [weak = std::weak_ptr(job)](const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
        if (const auto known = weak.lock()) return known->find_addresses(name, std::move(done));
        done({});
      });
  return job;
}

}  // namespace weft::rpc
