// CallHost: the part of an agent that its calls use: identity, handler threads, methods, layers, accounts,
// and the failure of its job.
//
// CallHost does not refer to connections: AgentCore, which derives from CallHost, adds them. Calls share the
// ownership of their host. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/call/method_table.h>
#include <weft/rpc/core/mutex.h>

namespace weft::rpc {

class WEFT_EXPORT CallHost {
 public:
  // The parts of the agent. They exist as long as the host. handlers(): the handler threads, on which
  // handlers run unless their method is non_blocking or a layer sets another executor.
  const AgentId& id() const { return id_; }
  Executor& handlers() const { return *handlers_; }
  const std::shared_ptr<CallAccounts>& accounts() const { return accounts_; }
  AgentCounters& counters() const { return accounts_->counters(); }
  MethodTable& methods() { return methods_; }
  // layers(): objects of layers that are attached to the agent. Hooks and objects are added while the agent
  // is created.
  LayerHooks& hooks() { return hooks_; }
  const LayerHooks& hooks() const { return hooks_; }
  Slots& layers() { return hooks_.layers(); }
  const Slots& layers() const { return hooks_.layers(); }

  // The start time of a call: exact if the agent has interceptors, otherwise accurate to a few milliseconds.
  Clock::time_point call_time(const Loop& loop) const {
    return hooks_.interceptors().empty() ? loop.coarse_now() : loop.now();
  }
  // Options of calls that do not set their own.
  const std::shared_ptr<const RetryPolicy>& default_retry() const { return default_retry_; }  // null: none
  std::chrono::nanoseconds default_timeout() const { return default_timeout_; }
  void set_default_timeout(std::chrono::nanoseconds limit) { default_timeout_ = limit; }

  // Whether the agent refuses new calls of peers, except control calls (MethodEntry::control), because
  // drain() or shut_down() was called.
  bool draining() const { return accounts_->draining(); }
  bool ended() const { return ended_; }  // whether the agent has shut down

  // Sets the error with which the agent's job has failed. From then on, calls whose peer is lost fail with
  // this error. Other calls continue. Later errors are ignored.
  void set_job_error(const Error& error) {
    MutexLock lock(failure_mutex_);
    if (job_error_) return;
    job_error_ = error;
    job_failed_ = true;
  }
  std::optional<Error> job_error() const {  // the first error of set_job_error()
    if (!job_failed_) return std::nullopt;  // called for every call
    MutexLock lock(failure_mutex_);
    return job_error_;
  }
  // The error with which calls fail if their peer is lost. nullopt: they fail with the error of the loss. If
  // the job has failed, its peers end because of that failure, so the failure is the cause. If this agent has
  // shut down, the shutdown is the cause.
  std::optional<Error> job_error_of_ends() const { return ended_ ? std::nullopt : job_error(); }
  // Whether all calls fail with job_error(), because AgentCore::fail_job() was called.
  bool job_ended() const { return job_ended_; }

 protected:
  // interceptors, retry and timeout are the options of the agent. timeout: no_timeout if there is no default.
  CallHost(AgentId id, std::shared_ptr<Executor> handlers, const Limits& limits,
           LayerHooks::Interceptors interceptors, const std::optional<RetryPolicy>& retry,
           std::chrono::nanoseconds timeout)
      : id_(std::move(id)),
        handlers_(std::move(handlers)),
        accounts_(std::make_shared<CallAccounts>(limits)),
        hooks_(std::move(interceptors)),
        default_retry_(retry ? std::make_shared<const RetryPolicy>(*retry) : nullptr),
        default_timeout_(timeout) {}
  ~CallHost() = default;
  bool end() { return !ended_.exchange(true); }                // false: the agent had ended before
  bool set_job_ended() { return !job_ended_.exchange(true); }  // false: the job had ended before

 private:
  const AgentId id_;
  const std::shared_ptr<Executor> handlers_;
  const std::shared_ptr<CallAccounts> accounts_;
  MethodTable methods_;
  LayerHooks hooks_;
  const std::shared_ptr<const RetryPolicy> default_retry_;
  std::atomic<std::chrono::nanoseconds> default_timeout_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> job_failed_{false};  // job_error_ is set
  std::atomic<bool> job_ended_{false};
  mutable Mutex failure_mutex_;
  std::optional<Error> job_error_ WEFT_GUARDED_BY(failure_mutex_);
};

}  // namespace weft::rpc
