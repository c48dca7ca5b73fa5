#include <weft/rpc/core/future.h>

#include <sstream>

namespace weft::rpc::detail {

void Latch::open() {
  MutexLock lock(mutex_);
  open_ = true;
  // Notified with the mutex locked, because the waiter may destroy this object as soon as the mutex is
  // unlocked.
  opened_.notify_all();
}

bool Latch::wait_for(std::chrono::nanoseconds timeout) {
  MutexLock lock(mutex_);
  const auto is_open = [this]() WEFT_REQUIRES(mutex_) { return open_; };
  // More than a year is treated as no timeout, because a later point in time may overflow in the system's
  // clock.
  if (timeout > std::chrono::hours{24 * 365}) return opened_.wait(lock, is_open), true;
  return opened_.wait_for(lock, timeout, is_open);
}

void continuation_threw(const Loop* loop, ExceptionSink* exceptions) noexcept {
  const auto exception = std::current_exception();
  if (exceptions != nullptr) return exceptions->take("a continuation", exception);
  if (loop != nullptr) return loop->exceptions()->take("a continuation", exception);
  ExceptionSink().take("a continuation", exception);
}

void refuse_blocking(const Loop* loop) {
  if (OwnedThread::here() || (loop != nullptr && loop->runs_on_this_thread()))
    throw Error(ErrorKind::failed_precondition,
                "get() would block a thread that an agent needs: co_await the future or use then()");
}

void refuse_empty() {
  throw Error(
      ErrorKind::failed_precondition,
      "an empty future or task was used: it was moved from, or its result was taken, which can be done "
      "once");
}

void timed_out(const std::string& title, std::chrono::nanoseconds timeout) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::ostringstream text;
  if (!title.empty()) text << title << ": ";
  text << "get(): no result within the timeout of " << Milliseconds(timeout).count()
       << " ms; the operation continues: wait again, or cancel() it";
  throw Error(ErrorKind::deadline_exceeded, text.str());
}

}  // namespace weft::rpc::detail
