// PendingCall: a call that was made and has not ended yet. CallWith passes its result to a callable.
//
// The queue of its route, or its session, owns the call; its timer and its cancel sources do not. The first
// of them to finish the call decides its result; later ones have no effect. If the owner releases the call
// without a result, it fails with shut_down. Thread-safety: as stated for each function.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/call/carrier.h>
#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/future.h>

#include <array>
#include <atomic>

namespace weft::rpc {

class CallHost;

// The method to which a reply with sections belongs. The slots of the reply's message contain it.
struct AnsweredMethod {
  std::string name;
};

class WEFT_EXPORT PendingCall {
 public:
  // Null for a notification, which completes when it was sent or accepted (CallSettings::acknowledged).
  using Reply = std::shared_ptr<IncomingMessage>;

  virtual ~PendingCall();

  // Sources that cancel a call, in addition to its future and deadline. Each of them may be null.
  using CancelSources = std::array<std::shared_ptr<CancelSource>, 2>;

  // The properties of the call, which stay the same (CallSettings). Any thread. id(): unique among the calls
  // of this agent. only(): the incarnation that must be reached; null: any. size(): the bytes that count
  // towards the limits.
  std::uint64_t id() const { return id_; }
  bool within_limits() const { return within_limits_; }  // false: the call exceeds a limit of outgoing calls
  const std::string& method() const { return call_.method_; }
  std::string title() const;  // for errors: "worker1: market.last"
  bool notify() const { return call_.notify; }
  bool control() const { return call_.control; }
  bool background() const { return call_.background; }
  bool fail_fast() const { return call_.fail_fast; }
  bool acknowledged() const { return call_.acknowledged; }
  const AgentId* only() const { return call_.only.get(); }
  const std::shared_ptr<CallRoute>& route() const { return route_; }
  std::optional<Clock::time_point> deadline() const { return call_.deadline; }
  bool wait_for_ready() const { return call_.wait_for_ready; }
  std::optional<std::chrono::nanoseconds> connect_within() const { return call_.connect_within; }
  OutgoingSize size() const { return size_; }
  // The time of the call: exact if the agent has interceptors, otherwise accurate to a few milliseconds.
  Clock::time_point made() const { return made_; }
  // The served call on whose behalf this one is made; null: none, or that call no longer exists.
  std::shared_ptr<CallContext> served() const { return call_.serving.lock(); }
  bool finished() const { return stage_.load(std::memory_order_acquire) == Stage::over; }  // any thread

  // Connects the call to its cancel sources, which cancel it while it is in flight. Call it once, before the
  // call is submitted. false: a source has been cancelled already, and this call has failed without being
  // sent.
  static bool serve(const std::shared_ptr<PendingCall>& call, const CancelSources& sources);

  // Sets the call's timer on this loop, the calling one: for the deadline, or, if the call is `connecting`
  // (waits for a connection), for connect_within() if that is earlier. Replaces the timer before it, on
  // whichever loop that is; clear_timer() removes it. The timer is cancelled when the call ends.
  static void watch_time(const std::shared_ptr<PendingCall>& call, const std::shared_ptr<Loop>& loop,
                         bool connecting);
  void clear_timer();

  // The frame of a call.
  struct SerializedCall {
    OutboundFrame frame;
    // Fails the call if a borrowed argument has changed: call it each time the frame was sent. null: no
    // argument is borrowed.
    std::shared_ptr<UniqueFunction<void()>> check;
  };
  // How the frame is sent.
  struct SendTarget {
    std::weak_ptr<Carrier> sent_by;  // the session that keeps the frame
    const AgentId& peer;
    std::uint64_t accepted = 0;  // the number of frames that the session has accepted
  };
  // Seals and returns the frame. Call it once, on the session's loop. From here on the callee may run the
  // call. nullopt: the call has ended and is not sent. Throws the error if sealing fails.
  std::optional<SerializedCall> take_frame(const std::shared_ptr<PendingCall>& self, const Loop& loop,
                                           const SendTarget& target);

  // Any thread. false: the call had ended before.
  bool finish(Result<Reply> result);
  bool fail(const Error& error) { return finish(error); }
  // Fails the call. The error's execution() states whether the call was sent.
  void lose(ErrorKind kind, const std::string& reason) { lose_from(end(), kind, reason); }
  // Fails with `cause`, or like lose() without one.
  void lose(const std::optional<Error>& cause, ErrorKind kind, const std::string& reason) {
    cause ? (void)fail(*cause) : lose(kind, reason);
  }
  // Fails the call if it exceeds a limit of outgoing calls, and returns whether it does. The creator must not
  // submit it then.
  bool refuse_excess();
  // Fails the call like lose(). If the call was sent, it is cancelled at the callee first, so that no later
  // call of the caller overtakes the cancellation.
  void give_up(ErrorKind kind, const std::string& reason);

 protected:
  // Counts the call until its end.
  PendingCall(OutgoingCall&& call, const CallHost& host, std::shared_ptr<CallRoute> route);
  // Called once at the call's end, on the thread that ended it.
  virtual void done(Result<Reply> result) = 0;
  // For the destructor of each final class: fails the call if it has not ended.
  void drop();

 private:
  enum class Stage : std::uint8_t { waiting, sent, over };
  void complete(Result<Reply> result);
  Stage end() { return stage_.exchange(Stage::over, std::memory_order_acq_rel); }  // returns the stage before
  void lose_from(Stage before, ErrorKind kind, const std::string& reason);

  const std::shared_ptr<CallAccounts> accounts_;
  const std::uint64_t id_;
  const std::shared_ptr<CallRoute> route_;
  OutgoingCall call_;  // has its message until the call is sent or has ended
  const Clock::time_point made_;
  static constexpr Loop::TimerId timer_over = ~Loop::TimerId{0};
  std::shared_ptr<Loop> timer_loop_;
  std::atomic<Loop::TimerId> timer_{0};  // timer_over once the call has ended
  std::weak_ptr<Carrier> sent_by_;       // constant once the call was sent
  std::atomic<Stage> stage_{
      Stage::waiting};  // one atomic change decides which thread ends the call, and whether it was sent
  // A cancel source of this call, and the id of this call's job there: 0 before it is known, `over` once this
  // call has ended.
  struct Served {
    static constexpr CancelSource::CancelJobId over = ~CancelSource::CancelJobId{0};
    std::weak_ptr<CancelSource> source;
    std::atomic<CancelSource::CancelJobId> job{0};
  };
  std::array<Served, std::tuple_size_v<CancelSources>> served_;
  const OutgoingSize size_;
  const bool within_limits_;
};

// Done: (Result<Reply>&&, const PendingCall&) -> void. Called once, at the end of the call, on the thread
// that ended it, and then destroyed.
template <class Done>
class CallWith final : public PendingCall {
 public:
  CallWith(OutgoingCall&& call, const CallHost& host, std::shared_ptr<CallRoute> route, Done done)
      : PendingCall(std::move(call), host, std::move(route)), done_(std::move(done)) {}
  ~CallWith() override { drop(); }
  Done& when_done() { return done_; }  // until the call is submitted

 private:
  void done(Result<Reply> result) override {
    Done done = std::move(done_);
    done(std::move(result), *this);
  }
  Done done_;
};

// Completes a promise with the decoded reply. Decode: (Result<Reply>&&[, const PendingCall&]) ->
// Result<Value>.
template <class Value, class Decode>
struct CompletePromise {
  Promise<Value> promise;
  Decode decode;

  // call: passed to a Decode with two parameters.
  void operator()(Result<PendingCall::Reply>&& reply, const PendingCall& call) {
    if constexpr (std::is_invocable_v<Decode&, Result<PendingCall::Reply>&&, const PendingCall&>) {
      promise.complete(decode(std::move(reply), call));
    } else {
      promise.complete(decode(std::move(reply)));
    }
  }
};

}  // namespace weft::rpc
