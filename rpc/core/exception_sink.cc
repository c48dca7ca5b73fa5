#include <weft/rpc/core/exception_sink.h>

#include <cstdio>

namespace weft::rpc {
namespace {

std::string what(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

void ExceptionSink::set_handler(Handler handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

void ExceptionSink::take(const char* source, const std::exception_ptr& exception) noexcept {
  try {
    const std::string text =
        std::string(source) + " threw an exception, which was dropped: " + what(exception);
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
