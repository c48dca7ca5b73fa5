// CallContext: the call that a handler serves. The calls that the handler makes with `peer.with(call)`
// inherit the deadline, the cancellation, and the sections of layers above (pass, trace).
//
// The context exists until the call is answered. CancelSource: the base of objects whose cancellation cancels
// calls. They are CallContext and CancelScope. Thread-safety: all functions may be called from any thread,
// except slots(), which only the handler may call.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/slots.h>
#include <weft/rpc/core/unique_function.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace weft::rpc {

class CallHost;

inline constexpr std::string_view metadata_section = "meta";  // text by key, set by the caller

// The caller.
struct Caller {
  AgentId id;            // as the peer states it; not proven
  std::string identity;  // the proven identity of the peer (docs/security.md); empty: none
  std::string address;
};

class WEFT_EXPORT CancelSource {
 public:
  // on_cancel() adds a job that runs once, at the cancellation: on a loop or on the thread that calls
  // cancel(). The job must not block or throw. If the source has been cancelled, the job runs within
  // on_cancel(), which then returns 0. forget_cancel() removes a job that is no longer needed.
  using CancelJobId = std::uint64_t;
  CancelJobId on_cancel(Callback job);
  void forget_cancel(CancelJobId id);

 protected:
  CancelSource() = default;
  ~CancelSource() = default;
  bool was_cancelled() const;         // run_cancel_jobs() was called
  void run_cancel_jobs();             // once; later calls have no effect
  virtual void first_cancel_job() {}  // called when the first job is added, on the thread that adds it
  // By default, writes a line to stderr.
  virtual void cancel_job_threw(const std::exception_ptr& exception) noexcept;

 private:
  mutable Mutex mutex_;
  bool cancelled_ WEFT_GUARDED_BY(mutex_) = false;
  CancelJobId last_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<CancelJobId, Callback> jobs_ WEFT_GUARDED_BY(mutex_);
};

// A group of calls that are cancelled together. `peer.with(scope)` adds calls to it. cancel() cancels each
// call in flight; later calls fail at once and are not sent. The destruction of the scope cancels nothing.
// Copies refer to the same scope.
class WEFT_EXPORT CancelScope {
 public:
  CancelScope() : shared_(std::make_shared<Shared>()) {}
  void cancel() { shared_->cancel(); }
  bool cancelled() const { return shared_->cancelled(); }           // cancel() was called
  std::shared_ptr<CancelSource> source() const { return shared_; }  // the same for all copies

 private:
  class Shared final : public CancelSource {
   public:
    void cancel() { run_cancel_jobs(); }
    bool cancelled() const { return was_cancelled(); }
  };
  std::shared_ptr<Shared> shared_;
};

class WEFT_EXPORT CallContext : public CancelSource, public std::enable_shared_from_this<CallContext> {
 public:
  virtual ~CallContext() = default;

  // The caller, and the name of the method ("service.method"). Both are valid until the call is answered.
  virtual const Caller& peer() const = 0;
  virtual std::string_view method() const = 0;
  // The deadline by this agent's clock: the arrival of the request plus the remaining time that the request
  // states. nullopt: the call has no deadline.
  virtual std::optional<Clock::time_point> deadline() const = 0;
  // The number of earlier attempts of this call. If the number is above 0, an earlier attempt may have run.
  virtual std::uint16_t attempt() const = 0;
  // Whether the caller has cancelled the call, the caller is gone, or the deadline has passed.
  virtual bool cancelled() const = 0;
  // Text that the caller sent with the arguments (Peer::with_metadata, OutgoingCall::set_metadata). nullopt:
  // the caller did not set this key.
  virtual std::optional<std::string> metadata(const std::string& key) = 0;
  virtual const std::shared_ptr<CallHost>& host() const = 0;  // the agent that serves the call
  // Data that layers attach to the call.
  Slots& slots() { return slots_; }

 private:
  Slots slots_;
};

}  // namespace weft::rpc
