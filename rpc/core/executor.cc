#include <weft/rpc/core/executor.h>

#include <weft/rpc/core/error.h>

#include <cstdio>

namespace weft::rpc {

void ExceptionSink::set_handler(Handler handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

void ExceptionSink::take(const char* source, const std::exception_ptr& exception) noexcept {
  try {
    const std::string text =
        std::string(source) + " threw an exception, which was dropped: " + what_of(exception);
    Handler handler;
    {
      MutexLock lock(mutex_);
      handler = handler_;
    }
    if (handler) return handler(text);
    std::fprintf(stderr, "weft: %s\n", text.c_str());
  } catch (...) {
    // The handler threw, or no memory is left.
  }
}

}  // namespace weft::rpc
