// IncomingCall: a request that this agent has accepted, from the arrival of its frame until its reply.
//
// Layers above prepare the call (CallHook::incoming): they may resolve its object, replace arguments, add
// parts and contexts, set the executor, or keep the result on this agent instead of sending it. Then the
// handler runs on the executor. Every call is answered exactly once: a call that is destroyed without an
// answer fails with `internal`. Owned by its handler and the layers. Thread-safety: layers prepare the call
// on its connection's loop, then the handler alone uses it; reply(), fail() and the functions of CallContext
// may be called from any thread.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/call/carrier.h>
#include <weft/rpc/call/method_table.h>
#include <weft/rpc/core/executor.h>

#include <atomic>
#include <typeinfo>
#include <vector>

namespace weft::rpc {

// The type of a kept value. Each type has one KeptType, which is never destroyed.
struct WEFT_EXPORT KeptType {
  std::string name;                                    // in the canonical grammar, or the name of its service
  bool concurrent = false;                             // calls of such an object may run at the same time
  void (*encode)(ValueWriter, const void*) = nullptr;  // null: values of the type cannot be sent
  // Throws a pointer to the object, as a pointer of the object's type. A catch clause for a pointer to a base
  // class receives the pointer, converted to the base. C++ has no other conversion from an erased type to a
  // base. Takes about 2 µs; see rref::detail::as.
  void (*throw_pointer)(void*) = nullptr;

  static const KeptType unknown;  // the type of a value whose type is unknown
};

// A handler's result, or a created object, that stays on this agent. Its C++ type is erased; `type` has the
// functions that send or use the value later.
struct KeptValue {
  std::shared_ptr<void> value;
  const KeptType* type = &KeptType::unknown;
};

// Receives the result of a call instead of the caller.
class WEFT_EXPORT ResultSink {
 public:
  virtual ~ResultSink() = default;
  // Receives the result of the handler, or the object that the handler created. Called on the thread that
  // answers the call. If keep() throws, the call fails with that exception.
  virtual void keep(KeptValue value) = 0;
  // The call has failed. If keep() was called before, the reply could not be sent. Called after the caller
  // was answered, on the loop of the call's connection.
  virtual void failed(std::exception_ptr error) = 0;
};

class WEFT_EXPORT IncomingCall final : public CallContext, public AnsweredCall, private ContextSwitch {
 public:
  // The session in which a call has arrived, and the connection: its loop, and the caller at its other end.
  struct Source {
    std::shared_ptr<Carrier> carrier;
    std::shared_ptr<Loop> loop;
    std::shared_ptr<const Caller> caller;
  };
  // method, message: of the request. active: counts the call.
  IncomingCall(std::shared_ptr<CallHost> host, Source source, std::shared_ptr<const MethodEntry> method,
               std::shared_ptr<IncomingMessage> message, ActiveCall active);
  ~IncomingCall() override;

  const Caller& peer() const override { return *caller_; }
  std::string_view method() const override { return method_->name; }
  std::optional<Clock::time_point> deadline() const override { return deadline_; }
  bool cancelled() const override;
  std::uint16_t attempt() const override { return attempt_; }
  std::optional<std::string> metadata(const std::string& key) override;
  const std::shared_ptr<CallHost>& host() const override { return host_; }

  // The method and the request, which exist as long as the call. share(): an owner of this call.
  const MethodEntry& entry() const { return *method_; }
  IncomingMessage& message() { return *message_; }
  std::shared_ptr<IncomingCall> share() { return std::static_pointer_cast<IncomingCall>(shared_from_this()); }

  // For the session: the call has waited, and the session belongs to another loop now. Call it before the
  // layers prepare the call.
  void set_loop(const std::shared_ptr<Loop>& loop);

  // For layers, while they prepare the call.
  void set_object(std::shared_ptr<void> object) { object_ = std::move(object); }
  void set_executor(std::shared_ptr<Executor> executor);
  void add_part(std::shared_ptr<CallPart> part) { parts_.push_back(std::move(part)); }
  void add_context(std::unique_ptr<ContextSwitch> context) { contexts_.push_back(std::move(context)); }
  void set_sink(std::shared_ptr<ResultSink> sink) { sink_ = std::move(sink); }
  void replace_argument(std::size_t i, ValueReader value, std::shared_ptr<IncomingMessage> source);
  // `admission` is called on the executor, before the handler. It runs `proceed` there at once, posts it to
  // the executor later, or fails the call. It may add contexts.
  void set_admission(UniqueFunction<void(Callback proceed)> admission) { admission_ = std::move(admission); }
  // Runs the handler on the executor (at once if the executor is the loop), after the method's MethodGate, if
  // it has one, has admitted the call.
  void run();

  // For the handler's thunk.
  std::size_t argument_count() const { return message_->argument_count(); }
  ValueReader argument(std::size_t i) const {
    return replaced_.empty() ? message_->argument(i) : replaced_.at(i);
  }
  void* object() const { return object_.get(); }
  Executor& executor() const { return *executor_; }
  std::shared_ptr<Executor> share_executor() const;  // for work that continues after the call is answered
  bool caller_is_lost() const { return carrier_->is_over(); }  // any thread
  asio::execution_context& asio_context() const { return loop_->context(); }
  // Call it when the handler has returned and the answer is pending.
  void release_object() { object_ = nullptr; }
  ContextSwitch* context() { return contexts_.empty() ? nullptr : this; }
  bool keeps_result() const { return sink_ != nullptr; }
  // Answer the call. Only the first answer has an effect. keep(): passes the result to the sink, if
  // keeps_result().
  void keep(KeptValue value);
  void reply(UniqueFunction<void(ValueWriter)> encode);
  void fail(std::exception_ptr error);
  void fail(const Error& error) { fail(std::make_exception_ptr(error)); }
  // Fails a call whose handler was never called. The error states that the call did not run.
  void refuse(std::exception_ptr error);
  void refuse(const Error& error) { refuse(std::make_exception_ptr(error)); }

  // Whether the caller waits for no reply.
  bool is_notification() const { return (message_->prefix().flags & frame_flags::notify) != 0; }
  // Called when the caller cancels the call, at its deadline, and when the caller is gone. Only the
  // first call has an effect.
  void cancel() { run_cancel_jobs(); }
  // The caller's id of the call: unique among the calls of the caller's incarnation.
  std::uint64_t id() const { return message_->prefix().call_id; }

  // For reports of calls in flight; any thread. accepted(): the arrival of the request, accurate to a few
  // milliseconds, or exact if the agent has interceptors. began(): the handler may have run. returned(): the
  // handler has returned, or its coroutine has suspended, without an answer. at_gate(): the limit of the
  // method holds the call back.
  Clock::time_point accepted() const { return accepted_; }
  bool answered() const { return answered_; }
  bool began() const { return began_; }
  bool returned() const { return returned_; }
  bool at_gate() const { return at_gate_; }
  // The executor on which the call waits or runs. Calls of an object that run one after another have the same
  // executor. null: the call is not prepared yet.
  const Executor* queue() const { return queue_; }

 private:
  friend class MethodGate;
  void admitted(std::shared_ptr<MethodGate> gate);  // null: the method has no limit
  bool is_late() const;                             // the deadline has passed
  void begin();
  void intercept(std::size_t next);  // calls the interceptor with this index, and those after it
  void enter_queue();
  void note_answer(const std::exception_ptr& error);
  void execute();
  void first_cancel_job() override;
  void cancel_job_threw(const std::exception_ptr& exception) noexcept override;
  void give_up_reply();   // the reply was not sent: the parts of the call undo what they wrote to the reply
  void enter() override;  // all contexts
  void leave() override;

  ActiveCall active_;  // destroyed last, because its destructor may complete drain()
  std::shared_ptr<CallHost> host_;
  std::shared_ptr<Carrier> carrier_;
  std::shared_ptr<Loop> loop_;
  std::shared_ptr<const MethodEntry> method_;
  std::shared_ptr<IncomingMessage> message_;
  std::shared_ptr<const Caller> caller_;
  std::optional<Clock::time_point> deadline_;
  const Clock::time_point accepted_;
  std::uint16_t attempt_;
  std::shared_ptr<MethodGate> passed_;                     // the gate that admitted the call
  std::vector<ValueReader> replaced_;                      // all arguments, if one of them was replaced
  std::vector<std::shared_ptr<IncomingMessage>> sources_;  // the messages that own replaced arguments
  std::vector<std::shared_ptr<CallPart>> parts_;
  std::vector<std::unique_ptr<ContextSwitch>> contexts_;
  std::shared_ptr<ResultSink> sink_;
  UniqueFunction<void(Callback)> admission_;
  std::shared_ptr<void> object_;
  std::shared_ptr<Executor> kept_executor_;
  Executor* executor_ = nullptr;
  std::atomic<bool> answered_{false};
  std::atomic<bool> began_{false};  // the handler may have run
  std::atomic<bool> returned_{false}, at_gate_{false};
  std::atomic<const Executor*> queue_{nullptr};
  std::atomic<bool> deadline_struck_{false};  // the call was cancelled because of its deadline
  // Used on the loop; set when the first job waits for the cancellation.
  Loop::TimerId deadline_timer_ = 0;
};

}  // namespace weft::rpc
