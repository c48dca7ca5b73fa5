// CancelSource: cancels calls: the call that a handler serves (CallContext), or a CancelScope.
//
// Thread-safety: any thread.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/unique_function.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>

namespace weft::rpc {

class WEFT_EXPORT CancelSource {
 public:
  // Runs once, at cancellation (on a loop, or where cancel() was called; must neither block nor throw), or
  // here if that has been; then the id is 0. A job that is no longer needed is forgotten by its id, else it
  // goes with the source.
  using CancelJobId = std::uint64_t;
  CancelJobId on_cancel(Callback job);
  void forget_cancel(CancelJobId id);

 protected:
  CancelSource() = default;
  ~CancelSource() = default;
  bool was_cancelled() const;
  void run_cancel_jobs();             // once; later ones do nothing
  virtual void first_cancel_job() {}  // somebody waits, for the first time; on their thread
  virtual void cancel_job_threw(const std::exception_ptr& exception) noexcept;  // by default a line on stderr

 private:
  mutable std::mutex mutex_;  // guards what follows
  bool cancelled_ = false;
  CancelJobId last_ = 0;
  std::map<CancelJobId, Callback> jobs_;
};

// A group of calls that are cancelled together. `peer.with(scope)` adds calls to it. cancel() cancels each
// call in flight; later calls fail at once and are not sent. Destroying the scope cancels nothing. Copies are
// the same scope.
class WEFT_EXPORT CancelScope {
 public:
  CancelScope() : shared_(std::make_shared<Shared>()) {}
  void cancel() { shared_->cancel(); }
  bool cancelled() const { return shared_->cancelled(); }
  std::shared_ptr<CancelSource> source() const { return shared_; }

 private:
  class Shared final : public CancelSource {
   public:
    void cancel() { run_cancel_jobs(); }
    bool cancelled() const { return was_cancelled(); }
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace weft::rpc
