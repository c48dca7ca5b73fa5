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
      default_timeout_(timeout) {}

void CallHost::set_job_error(const Error& error) {
  MutexLock lock(failure_mutex_);
  if (job_error_) return;
  job_error_ = error;
  job_failed_ = true;
}

std::optional<Error> CallHost::job_error() const {
  if (!job_failed_) return std::nullopt;  // called for every call
  MutexLock lock(failure_mutex_);
  return job_error_;
}

// If the job has failed, its peers end because of that failure, so the failure is the cause. If this agent
// has shut down, the shutdown is the cause.
std::optional<Error> CallHost::job_error_of_ends() const { return ended_ ? std::nullopt : job_error(); }

}  // namespace weft::rpc
