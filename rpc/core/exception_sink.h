// ExceptionSink: receives the exceptions that continuations of futures and jobs of executors throw. The code
// that runs a continuation belongs to a connection, a timer or another caller, which cannot handle the
// exception.
//
// Each loop has one sink, and the handler threads of an agent have one. A future shares the sink of the loop
// or of the handler threads that complete the future. Without a handler, take() writes a line to stderr. An
// agent sets a handler that logs and counts the exceptions. Thread-safe.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <exception>
#include <functional>
#include <string>

namespace weft::rpc {

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

}  // namespace weft::rpc
