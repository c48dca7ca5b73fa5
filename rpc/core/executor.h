// Executor: the thread or pool on which code runs. A Task has one executor and resumes only there.
//
// post() may be called from any thread, and returns before the job runs. Jobs must not throw. An executor
// outlives every job and every Task posted to it. Implementations are thread-safe.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/unique_function.h>

#include <memory>

namespace weft::rpc {

class ExceptionSink;

class WEFT_EXPORT Executor {
 public:
  virtual ~Executor() = default;
  virtual void post(Callback job) = 0;
  // Receives the exceptions of continuations that run on this executor; null: they are written to stderr.
  virtual std::shared_ptr<ExceptionSink> exceptions() const { return nullptr; }
};

// ContextSwitch: thread-local state that belongs to a piece of code rather than to a thread (LibTorch's grad
// mode, the parameter version that a handler reads). It is entered before the code runs on a thread, and left
// when the code suspends or ends. Calls of enter() and leave() strictly alternate, possibly on different
// threads.
class WEFT_EXPORT ContextSwitch {
 public:
  virtual ~ContextSwitch() = default;
  // enter() sets the state on the calling thread. leave() saves the state and removes it from the thread.
  virtual void enter() = 0;
  virtual void leave() = 0;
};

// Enters a context for a scope; a null context has no effect.
class ContextScope {
 public:
  explicit ContextScope(ContextSwitch* context) : context_(context) {
    if (context_ != nullptr) context_->enter();
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    if (context_ != nullptr) context_->leave();
  }

 private:
  ContextSwitch* context_;
};

}  // namespace weft::rpc
