// CallRoute: the path to one peer, which sends calls of this agent. Carrier: the session that keeps a call of
// this agent, or in which a call of a peer arrived, and which sends its reply.
//
// rpc/endpoint implements both (Route and Session), so that rpc/call depends on no connection. Thread-safety:
// all functions may be called from any thread, unless stated otherwise.
#pragma once

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/call/retry.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/wire/message.h>

#include <string>

namespace weft::rpc {

class PendingCall;

class WEFT_EXPORT CallRoute : public Destination {
 public:
  // loop(): constant. The timers and the cancellation of calls run on this loop. retry_budget(): shared by
  // all calls to the peer.
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  RetryBudget& retry_budget() { return retry_budget_; }
  virtual std::string peer_name() const = 0;  // for error texts; an address until the peer is connected
  // Sends the call once there is a connection. If the call cannot be sent, it fails. Does not block.
  virtual void submit(std::shared_ptr<PendingCall> call) = 0;
  // Posts a job to the loop that fails the call with `cancelled`. If the call was sent, the job also cancels
  // it at the callee. No effect on a call that has ended.
  virtual void cancel(std::shared_ptr<PendingCall> call) = 0;

 protected:
  // budget: the options of retry_budget().
  CallRoute(std::shared_ptr<Loop> loop, RetryBudgetOptions budget)
      : loop_(std::move(loop)), retry_budget_(budget) {}

 private:
  const std::shared_ptr<Loop> loop_;
  RetryBudget retry_budget_;
};

class WEFT_EXPORT Carrier {
 public:
  // Cancels a call of this agent at the callee; no effect if the call is unknown.
  virtual void cancel(std::uint64_t call_id) = 0;
  virtual bool is_over() const = 0;  // whether the peer is gone
  virtual void check_fits(
      const OutboundFrame& frame) const = 0;  // throws if the frame exceeds a limit of either side
  // `active` is destroyed when the reply has been written, or cannot be written any more.
  virtual void send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) = 0;
  virtual void send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall active) = 0;
  // An incoming call has been destroyed.
  struct EndedCall {
    std::uint64_t id = 0, bytes = 0;
    bool notification = false, control = false;
    bool was_refused = false;  // no call was made of the request
  };
  virtual void call_ended(const EndedCall& ended) = 0;

 protected:
  ~Carrier() = default;
};

}  // namespace weft::rpc
