// CancelSource: the base of objects whose cancellation cancels calls. They are CallContext (the call that a
// handler serves) and CancelScope.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>

namespace weft::rpc {

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

}  // namespace weft::rpc
