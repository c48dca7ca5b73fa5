// RetriedCall: one call of a program with a RetryPolicy, made of one or more attempts.
//
// Keeps the encoded request, and creates a PendingCall from it for each attempt. The arguments are borrowed
// until the call ends. Owned by its attempts and its timer. Thread-safety: begin() once; cancel() and title()
// from any thread; the rest runs on its route's loop or on the thread that ends an attempt.
#pragma once

#include <weft/rpc/call/pending_call.h>

namespace weft::rpc {

class WEFT_EXPORT RetriedCall final : public std::enable_shared_from_this<RetriedCall> {
 public:
  // Called once with the result and the last attempt.
  using Done = UniqueFunction<void(Result<PendingCall::Reply>, const PendingCall&)>;

  // Calls with parts of layers are not retried: see retry.h.
  static bool applies(const OutgoingCall& call) {
    return call.retry != nullptr && call.parts().empty() && !call.notify;
  }

  // call: applies(call) is true, and its arguments are encoded. Throws if the request cannot be sealed.
  RetriedCall(OutgoingCall call, std::shared_ptr<CallHost> host, std::shared_ptr<CallRoute> route,
              PendingCall::CancelSources sources, Done done);

  void begin();
  void cancel();              // any thread; also ends a wait between two attempts
  std::string title() const;  // as PendingCall::title(); any thread

 private:
  void attempt();
  void ended(Result<PendingCall::Reply> result, const PendingCall& attempt);
  // Begin and end the wait between two attempts, on the loop.
  void wait(std::chrono::nanoseconds span, std::shared_ptr<void> waits);
  void end_wait();

  const std::shared_ptr<CallHost> host_;
  const std::shared_ptr<CallRoute> route_;
  const PendingCall::CancelSources sources_;
  std::array<CancelSource::CancelJobId, std::tuple_size_v<PendingCall::CancelSources>> cancel_jobs_{};
  OutgoingCall call_;      // the settings of every attempt; its message has been sealed
  OutboundFrame request_;  // sealed once; each attempt sends a copy
  std::vector<UniqueFunction<bool()>> borrowed_;
  Done done_;
  std::uint16_t attempts_ = 0;  // so far
  bool may_have_run_ = false;   // an attempt so far may have run
  Loop::TimerId timer_ = 0;     // ends the wait for the next attempt; used on the loop, like waits_
  std::shared_ptr<void> waits_;
  CancelScope attempts_in_flight_;
};

}  // namespace weft::rpc
