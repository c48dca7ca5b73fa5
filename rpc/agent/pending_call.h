// PendingCall: a call that was made and has not ended yet.
//
// Shared by its route's queue or link, its timer and its future; whoever finishes it first wins, exactly
// once. One that everybody has let go of ends as if its agent had shut down. Thread-safe where said.
#pragma once

#include <weft/rpc/agent/outgoing_call.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>

#include <atomic>

namespace weft::rpc {

class Link;
class Route;

class WEFT_EXPORT PendingCall {
 public:
  using Reply = std::shared_ptr<IncomingMessage>;
  using Done = UniqueFunction<void(Result<Reply>)>;

  PendingCall(OutgoingCall call, std::uint64_t id, std::shared_ptr<const Route> route, Done done);
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  std::uint64_t id() const { return id_; }
  const std::string& method() const { return method_; }
  bool notify() const { return notify_; }
  const std::optional<AgentId>& only() const { return only_; }
  std::optional<Clock::time_point> deadline() const { return deadline_; }
  bool finished() const { return stage_.load(std::memory_order_acquire) == Stage::over; }  // any thread

  // The timer of its deadline, cancelled at the end. Before the call is handed to a link.
  void set_timer(std::shared_ptr<Loop> loop, Loop::TimerId timer);

  // Seals and hands over the frame; on the link's loop, once. From here on the callee may run it. Nothing
  // where the call has ended: then it stays unsent. Throws what sealing throws.
  std::optional<OutboundFrame> take_frame(const std::shared_ptr<PendingCall>& self,
                                          const std::shared_ptr<Link>& link);

  // Any thread; false where it had ended before.
  bool finish(Result<Reply> result);
  bool fail(const Error& error) { return finish(std::make_exception_ptr(error)); }
  // Fails with peer_lost or the like, stating what is known of its execution. sent_over: gets the link it was
  // sent over.
  bool lose(ErrorKind kind, const std::string& reason, std::shared_ptr<Link>* sent_over = nullptr);

 private:
  enum class Stage : std::uint8_t { waiting, sent, over };
  void complete(Result<Reply> result);
  void check_borrowed();

  std::uint64_t id_;
  std::string method_;
  const std::shared_ptr<const Route> route_;  // says who the peer is
  bool notify_;
  std::optional<AgentId> only_;
  std::optional<Clock::time_point> deadline_;
  RequestInfo info_;
  std::unique_ptr<OutgoingMessage> message_;
  std::vector<std::shared_ptr<CallPart>> parts_;
  std::vector<UniqueFunction<bool()>> borrowed_;
  Done done_;
  std::shared_ptr<Loop> timer_loop_;
  Loop::TimerId timer_ = 0;
  std::weak_ptr<Link> link_;
  std::atomic<Stage> stage_{
      Stage::waiting};  // one step decides both who ends the call and whether it was sent
};

}  // namespace weft::rpc
