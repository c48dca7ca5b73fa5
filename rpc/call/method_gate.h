// MethodGate: how many calls of one method run at a time, and how many wait for their turn.
//
// Beyond both, a call is refused with resource_exhausted before its handler or its queue sees it, so that a
// method that is slow does not take the memory and the threads of others. First come, first served; a call
// that is cancelled gives up its place. Thread-safety: any thread.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

namespace weft::rpc {

class IncomingCall;

struct MethodLimit {
  std::size_t running = 0;  // at a time, from admission until the answer; at least 1
  std::size_t waiting = 0;
};

class WEFT_EXPORT MethodGate : public std::enable_shared_from_this<MethodGate> {
 public:
  explicit MethodGate(MethodLimit limit);

  // Admits the call now, or later, or refuses it.
  void enter(const std::shared_ptr<IncomingCall>& call);
  void leave();  // a call that was admitted has ended: the next one's turn

 private:
  void give_up(const IncomingCall* call);

  const MethodLimit limit_;
  std::mutex mutex_;  // guards what follows
  std::size_t running_ = 0;
  std::deque<std::shared_ptr<IncomingCall>> waiting_;
};

}  // namespace weft::rpc
