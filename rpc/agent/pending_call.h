// PendingCall: a call that was made and has not ended yet; CallbackCall and TypedCall: what becomes of its
// end.
//
// Shared by its route's queue or link and its timer; whoever finishes it first wins, exactly once. One that
// everybody has let go of ends as if its agent had shut down. Thread-safe where said.
#pragma once

#include <weft/rpc/agent/call_accounts.h>
#include <weft/rpc/agent/call_context.h>
#include <weft/rpc/agent/outgoing_call.h>
#include <weft/rpc/core/future.h>

#include <array>
#include <atomic>

namespace weft::rpc {

class AgentCore;
class Link;
class Route;
class Session;

// The method that a reply with sections answers; in the slots of the message.
struct AnsweredMethod {
  std::string name;
};

class WEFT_EXPORT PendingCall {
 public:
  using Reply = std::shared_ptr<IncomingMessage>;

  virtual ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // What a call may be cancelled with, beside its own future and deadline: either may be null.
  using CancelSources = std::array<std::shared_ptr<CancelSource>, 2>;

  std::uint64_t id() const { return id_; }
  bool within_limits() const { return within_limits_; }  // of this agent's outgoing calls
  const std::string& method() const { return method_; }
  std::string title() const;  // for errors: "worker1: market.last"
  bool notify() const { return notify_; }
  bool upkeep() const { return upkeep_; }
  bool background() const { return background_; }
  bool resumable() const { return resumable_; }
  const AgentId* only() const { return only_.get(); }
  const std::shared_ptr<Route>& route() const { return route_; }
  std::optional<Clock::time_point> deadline() const { return deadline_; }
  bool wait_for_ready() const { return wait_for_ready_; }
  std::optional<std::chrono::nanoseconds> connect_within() const { return connect_within_; }
  OutgoingSize size() const { return size_; }
  Clock::time_point made() const { return made_; }  // to some milliseconds, unless there is an interceptor
  // The call that it is made in the name of, where that lives.
  std::shared_ptr<CallContext> served() const { return context_.lock(); }
  bool finished() const { return stage_.load(std::memory_order_acquire) == Stage::over; }  // any thread

  // Once, before it is submitted: the cancellation of the call that a handler serves, or of
  // a scope, reaches this one, as long as it is under way. false: it has been cancelled, and this call has
  // ended unsent.
  static bool serve(const std::shared_ptr<PendingCall>& call, const CancelSources& sources);

  // Its timer, in place of the one before; cancelled at the call's end. On the loop of both, before the call
  // is handed to a link. 0: none.
  void set_timer(std::shared_ptr<Loop> loop, Loop::TimerId timer);

  // Seals and hands over the frame; on the link's loop, once. From here on the callee may run it. Nothing
  // where the call has ended: then it stays unsent. Throws what sealing throws.
  struct Sealed {
    OutboundFrame frame;
    // Fails the call if a borrowed argument has changed: to be called whenever the frame has left. null: none
    // is borrowed.
    std::shared_ptr<UniqueFunction<void()>> check;
  };
  // session: that keeps the frame; null: none does.
  std::optional<Sealed> take_frame(const std::shared_ptr<PendingCall>& self,
                                   const std::shared_ptr<Link>& link,
                                   const std::shared_ptr<Session>& session = nullptr);
  std::shared_ptr<Session> session() const { return session_.lock(); }  // null: none. Once the call has left

  // Any thread; false where it had ended before.
  bool finish(Result<Reply> result);
  bool fail(const Error& error) { return finish(std::make_exception_ptr(error)); }
  // Fails with peer_lost or the like, stating what is known of its execution. sent_over: gets the link it was
  // sent over.
  bool lose(ErrorKind kind, const std::string& reason, std::shared_ptr<Link>* sent_over = nullptr);

 protected:
  PendingCall(OutgoingCall&& call, std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route);
  // Its end, on whatever thread brought it about.
  virtual void done(Result<Reply> result) = 0;
  // What the destructor of each final class begins with: the call ends, where nothing else ended it.
  void drop();

 private:
  enum class Stage : std::uint8_t { waiting, sent, over };
  void complete(Result<Reply> result);

  const std::shared_ptr<AgentCore> core_;
  const std::uint64_t id_;
  const std::string method_;
  const std::shared_ptr<Route> route_;
  const bool notify_;
  const bool upkeep_, background_, resumable_;
  const std::shared_ptr<const AgentId> only_;
  std::optional<Clock::time_point> deadline_;
  const bool wait_for_ready_;
  const std::optional<std::chrono::nanoseconds> connect_within_;
  const Clock::time_point made_;
  RequestInfo info_;
  std::unique_ptr<OutgoingMessage> message_;
  std::vector<std::shared_ptr<CallPart>> parts_;
  std::shared_ptr<Loop> timer_loop_;
  Loop::TimerId timer_ = 0;
  std::weak_ptr<Link> link_;
  std::weak_ptr<Session> session_;
  std::atomic<Stage> stage_{
      Stage::waiting};  // one step decides both who ends the call and whether it was sent
  // What this call is cancelled with, and the job there that its end makes needless: 0 before it is known,
  // `over` once this call has ended.
  struct Served {
    static constexpr CancelSource::CancelJobId over = ~CancelSource::CancelJobId{0};
    std::weak_ptr<CancelSource> source;
    std::atomic<CancelSource::CancelJobId> job{0};
  };
  std::array<Served, std::tuple_size_v<CancelSources>> served_;
  std::weak_ptr<CallContext> context_;  // of the call that it is made in the name of
  std::vector<std::unique_ptr<CallWatch>> watches_;
  const OutgoingSize size_;
  const bool within_limits_;
};

class WEFT_EXPORT CallbackCall final : public PendingCall {
 public:
  using Done = UniqueFunction<void(Result<Reply>)>;
  CallbackCall(OutgoingCall&& call, std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route, Done done)
      : PendingCall(std::move(call), std::move(core), std::move(route)), done_(std::move(done)) {}
  ~CallbackCall() override { drop(); }

 private:
  void done(Result<Reply> result) override { std::exchange(done_, nullptr)(std::move(result)); }
  Done done_;
};

// As a future of what Decode makes of the reply: (Result<Reply>&&[, const PendingCall&]) -> Result<Value>.
template <class Value, class Decode>
class TypedCall final : public PendingCall {
 public:
  TypedCall(OutgoingCall&& call, std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route,
            Promise<Value>&& promise, Decode decode)
      : PendingCall(std::move(call), std::move(core), std::move(route)),
        promise_(std::move(promise)),
        decode_(std::move(decode)) {}
  ~TypedCall() override { drop(); }
  Promise<Value>& promise() { return promise_; }  // until the call is submitted

 private:
  void done(Result<Reply> result) override {
    if constexpr (std::is_invocable_v<Decode&, Result<Reply>&&, const PendingCall&>) {
      promise_.complete(decode_(std::move(result), *this));
    } else {
      promise_.complete(decode_(std::move(result)));
    }
  }
  Promise<Value> promise_;
  Decode decode_;
};

}  // namespace weft::rpc
