// MethodGate: limits the number of calls of one method that run at the same time, and the number that wait.
//
// Further calls are refused with resource_exhausted before they are queued, so that a slow method does not
// use all memory and threads. Calls are admitted in the order of their arrival; a cancelled call gives up its
// place. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <cstddef>
#include <deque>
#include <memory>

namespace weft::rpc {

class IncomingCall;

// The limits of one method, in calls of all peers together.
struct MethodLimit {
  std::size_t running = 0;  // at a time, from admission until the answer; at least 1
  std::size_t waiting = 0;  // for admission; further calls are refused
};

class WEFT_EXPORT MethodGate : public std::enable_shared_from_this<MethodGate> {
 public:
  explicit MethodGate(MethodLimit limit);

  // Admits the call now or later, or refuses it.
  void enter(const std::shared_ptr<IncomingCall>& call);
  void leave();  // an admitted call has ended: admits the next one

 private:
  void give_up(const IncomingCall* call);

  const MethodLimit limit_;
  Mutex mutex_;
  std::size_t running_ WEFT_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<IncomingCall>> waiting_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
