#include <weft/rpc/job/job.h>

#include <weft/rpc/job/environment.h>

namespace weft::rpc {
namespace {

AgentOptions adjusted(AgentOptions options, const Job::Adjust& adjust) {
  if (adjust) adjust(options);
  return options;
}

}  // namespace

Job::Job(AgentOptions options, Layers layers)
    : own_(std::make_unique<Agent>(std::move(options), std::move(layers))),
      agent_(own_.get()),
      membership_(&agent_->membership()) {}

Job::Job(Agent& agent) : agent_(&agent), membership_(&agent.membership()) {}

Job Job::from_environment(Layers layers, const Adjust& adjust) {
  return Job(adjusted(rpc::from_environment(), adjust), std::move(layers));
}

Job Job::from_url(const std::string& url, Layers layers, const Adjust& adjust) {
  return Job(adjusted(rpc::from_url(url), adjust), std::move(layers));
}

Future<void> Job::join() { return wait_for(rendezvous().fixed_world ? world_size() : 1); }

Future<void> Job::barrier(CollectiveOptions options) {
  return membership_->gather(std::move(options), "", Buffer{}).then([](auto&& all) {
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
