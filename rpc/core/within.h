// within(): a future that completes at the latest after a time, for a caller that waits for a shorter time
// than the operation may take.
//
// If the result is not available after `timeout`, the future fails with `late`. The operation continues, and
// its result is dropped; a call is still sent and served. CallOptions::timeout ends the call itself. loop:
// runs the timer, and must outlive the operation. Thread-safety: as Future.
#pragma once

#include <weft/rpc/core/future.h>

namespace weft::rpc {

template <class T>
Future<T> within(std::chrono::nanoseconds timeout, Loop& loop, Future<T> future, std::exception_ptr late) {
  struct Wait {
    Promise<T> promise;
    std::atomic_flag over{};
    Loop::TimerId timer = 0;  // used on the loop only
  };
  std::shared_ptr<Wait> wait(new Wait{.promise = Promise<T>(future.loop(), future.exceptions())});
  auto limited = wait->promise.future();
  loop.dispatch([&loop, wait, late = std::move(late), when = later(loop.now(), timeout)] {
    if (wait->over.test()) return;
    wait->timer = loop.schedule(when, [weak = std::weak_ptr(wait), late] {
      const auto waiting = weak.lock();
      if (waiting != nullptr && !waiting->over.test_and_set()) waiting->promise.fail(late);
    });
  });
  future.then([&loop, wait](Result<T>&& result) {
    if (wait->over.test_and_set()) return;
    loop.dispatch([&loop, wait] {
      if (wait->timer != 0) loop.cancel(wait->timer);
    });
    wait->promise.complete(std::move(result));
  });
  return limited;
}

}  // namespace weft::rpc
