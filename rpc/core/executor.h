// Executor: the thread or pool on which code runs. A Task has one executor and resumes only there.
//
// post() may be called from any thread, and returns before the job runs. Jobs must not throw. An executor
// outlives every job and every Task posted to it. Implementations are thread-safe.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace weft::rpc {

// ExceptionSink: receives the exceptions that continuations of futures and jobs of executors throw. The code
// that runs a continuation belongs to a connection, a timer or another caller, which cannot handle the
// exception.
//
// Each loop has one sink, and the handler threads of an agent have one. A future shares the sink of the loop
// or of the handler threads that complete the future. Without a handler, take() writes a line to stderr. An
// agent sets a handler that logs and counts the exceptions. Thread-safe.
class WEFT_EXPORT ExceptionSink {
 public:
  using Handler = std::function<void(const std::string& text)>;  // any thread

  void set_handler(Handler handler);  // replaces the previous handler
  // source: the kind of code that threw, for example "a continuation". The handler receives one sentence.
  void take(const char* source, const std::exception_ptr& exception) noexcept;

 private:
  Mutex mutex_;
  Handler handler_ WEFT_GUARDED_BY(mutex_);
};

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
