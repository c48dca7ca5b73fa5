#include <weft/rpc/call/call_host.h>

namespace weft::rpc {

CallHost::CallHost(AgentId id, std::shared_ptr<Executor> handlers, const Limits& limits,
                   LayerHooks::Interceptors interceptors, const std::optional<RetryPolicy>& retry,
                   std::chrono::nanoseconds timeout)
    : id_(std::move(id)),
      handlers_(std::move(handlers)),
      accounts_(std::make_shared<CallAccounts>(limits)),
      hooks_(std::move(interceptors)),
      default_retry_(retry ? std::make_shared<const RetryPolicy>(*retry) : nullptr),
      default_timeout_(timeout.count()) {}

void CallHost::blame(const Error& error) {
  MutexLock lock(failure_mutex_);
  if (world_failure_) return;
  world_failure_ = error;
  world_failed_ = true;
}

std::optional<Error> CallHost::world_failure() const {
  if (!world_failed_) return std::nullopt;  // called for every call
  MutexLock lock(failure_mutex_);
  return world_failure_;
}

// If the job has failed, its peers end because of that failure, so the failure is the cause. If this agent
// has shut down, the shutdown is the cause.
std::optional<Error> CallHost::cause_of_ends() const { return ended_ ? std::nullopt : world_failure(); }

}  // namespace weft::rpc
