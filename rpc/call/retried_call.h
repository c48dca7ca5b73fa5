// RetriedCall: one call to its user, made as often as its RetryPolicy says.
//
// Keeps the request as it was encoded, and makes a PendingCall of it for each attempt. Its arguments are
// borrowed until it ends. Thread-safety: begin() once; cancel() any thread; the rest happens on its route's
// loop or where an attempt ends.
#pragma once

#include <weft/rpc/call/pending_call.h>

#include <mutex>

namespace weft::rpc {

class WEFT_EXPORT RetriedCall final : public std::enable_shared_from_this<RetriedCall> {
 public:
  // Gets the call's end, with the attempt that it ended with.
  using Done = UniqueFunction<void(Result<PendingCall::Reply>, const PendingCall&)>;

  // Calls that layers take part in are made once: see retry.h.
  static bool applies(const OutgoingCall& call) {
    return call.retry != nullptr && call.parts().empty() && !call.notify;
  }

  RetriedCall(OutgoingCall call, std::shared_ptr<CallHost> host, std::shared_ptr<CallRoute> route,
              PendingCall::CancelSources sources, Done done);

  void begin();
  void cancel();              // any thread; ends a wait between two attempts, too
  std::string title() const;  // as PendingCall's; any thread

 private:
  class Attempt;
  void attempt();
  void ended(Result<PendingCall::Reply> result, const PendingCall& attempt);
  // Between two attempts; on the loop.
  void wait(std::chrono::nanoseconds span, std::shared_ptr<void> waits);
  void end_wait();
  bool cancelled();
  bool unchanged();

  const std::shared_ptr<CallHost> host_;
  const std::shared_ptr<CallRoute> route_;
  const PendingCall::CancelSources sources_;
  std::array<CancelSource::CancelJobId, std::tuple_size_v<PendingCall::CancelSources>> cancel_jobs_{};
  OutgoingCall call_;      // what every attempt is made like; its message has been sealed
  OutboundFrame request_;  // as sealed once, never sent
  std::vector<UniqueFunction<bool()>> borrowed_;
  Done done_;
  std::uint16_t attempts_ = 0;  // made so far
  bool may_have_run_ = false;   // one of them
  Loop::TimerId timer_ = 0;     // of the wait for the next one; on the loop, like the next
  std::shared_ptr<void> waits_;

  std::mutex mutex_;  // guards what follows
  bool cancelled_ = false;
  std::weak_ptr<PendingCall> attempt_in_flight_;
};

}  // namespace weft::rpc
