#include <weft/rpc/job/job.h>

#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/environment.h>
#include <weft/rpc/job/membership/job_membership.h>

namespace weft::rpc {
namespace {

MemberOptions adjusted(MemberOptions options, const Job::Adjust& adjust) {
  if (adjust) adjust(options);
  return options;
}

std::shared_ptr<detail::JobMembership> membership_of(Agent& agent) {
  auto membership = agent.attached().share<detail::JobMembership>();
  if (membership == nullptr)
    throw Error(ErrorKind::failed_precondition, "'" + agent.name() +
                                                    "' has no job: construct its agent with Job::layer(), or "
                                                    "by a Job");
  return membership;
}

Layers with_job(Layers layers, const Rendezvous& rendezvous) {
  layers.push_back(Job::layer(rendezvous));
  return layers;
}

}  // namespace

void MemberOptions::detect_within(std::chrono::nanoseconds time) {
  if (time <= std::chrono::nanoseconds{0})
    throw Error(ErrorKind::invalid_argument,
                "MemberOptions::detect_within(" + seconds_text(time) + "), expected a positive time");
  heartbeat = {.interval = time / 5, .timeout = time};
  rendezvous.lease = time;
}

Job::Job(const MemberOptions& options, Layers layers)
    : own_(std::make_unique<Agent>(static_cast<const AgentOptions&>(options),
                                   with_job(std::move(layers), options.rendezvous))),
      agent_(own_.get()),
      membership_(membership_of(*agent_)) {}

Job::Job(Agent& agent) : agent_(&agent), membership_(membership_of(agent)) {}

Layer Job::layer(Rendezvous rendezvous) {
  return [rendezvous = std::move(rendezvous)](Agent& agent) {
    agent.attached().put(detail::JobMembership::install(agent.core(), rendezvous));
  };
}

Job Job::from_environment(Layers layers, const Adjust& adjust) {
  return Job(adjusted(rpc::from_environment(), adjust), std::move(layers));
}

Job Job::from_url(const std::string& url, Layers layers, const Adjust& adjust) {
  return Job(adjusted(rpc::from_url(url), adjust), std::move(layers));
}

const Rendezvous& Job::rendezvous() const { return membership_->rendezvous(); }

Peer Job::peer(std::size_t rank) const {
  const auto& core = agent_->core();
  return Peer(core, core->routes().to_name(membership_->name_of(rank)));
}

Future<void> Job::wait_for(std::size_t members, std::chrono::nanoseconds timeout) {
  return membership_->wait_for(members, timeout);
}

std::vector<Member> Job::members() const { return membership_->members(); }

std::unique_ptr<MemberWatch> Job::watch_members() { return membership_->watch(); }

std::shared_ptr<Store> Job::store() const {
  auto store = membership_->store();
  if (store == nullptr)
    throw Error(ErrorKind::failed_precondition,
                "'" + name() + "' has not joined its job: await join() before store()");
  return store;
}

Future<void> Job::quiesce(CollectiveOptions options) { return membership_->quiesce(std::move(options)); }

Future<std::map<std::string, Buffer>> Job::gather(CollectiveOptions options, std::string type, Buffer value) {
  return membership_->gather(std::move(options), std::move(type), std::move(value));
}

Future<void> Job::join(std::chrono::nanoseconds timeout) {
  return wait_for(rendezvous().fixed_world ? world_size() : 1, timeout);
}

Future<void> Job::barrier(CollectiveOptions options) {
  return gather(std::move(options), "", Buffer{}).then([](auto&& all) {
    return all.ok() ? Result<void>{} : Result<void>(all.error());
  });
}

Future<void> Job::leave() {
  left_ = true;
  return agent_->leave();
}

void Job::serve_until_shutdown(std::chrono::nanoseconds timeout) {
  if (left_) return;
  try {
    membership_->others_left(timeout).get();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::shut_down) throw;
  }
  left_ = true;
}

}  // namespace weft::rpc
