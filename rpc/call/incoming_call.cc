#include <weft/rpc/call/incoming_call.h>

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/codec/codec.h>

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

namespace weft::rpc {
namespace {

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                              std::free);
  return status == 0 ? name.get() : type.name();
}

FailureInfo describe(const CallHost& host, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    // The text of a RemoteError, from a nested call, names the worker and the method in which the error
    // arose.
    return {known.kind(), known.what(), {}, {}, {}, false, known.payload()};
  } catch (const std::exception& other) {
    return {ErrorKind::handler_failed, host.hooks().text_of(error), {}, {}, type_name(typeid(other)), false};
  } catch (...) {
    return {ErrorKind::handler_failed, host.hooks().text_of(error), {}, {}, {}, false};
  }
}

}  // namespace

IncomingCall::IncomingCall(std::shared_ptr<CallHost> host, Source source,
                           std::shared_ptr<const MethodEntry> method,
                           std::shared_ptr<IncomingMessage> message, ActiveCall active)
    : active_(std::move(active)),
      host_(std::move(host)),
      carrier_(std::move(source.carrier)),
      loop_(std::move(source.loop)),
      method_(std::move(method)),
      message_(std::move(message)),
      caller_(std::move(source.caller)),
      accepted_(host_->call_time(*loop_)),
      object_(method_->object) {
  const RequestInfo info = message_->request();
  attempt_ = info.attempt;
  if (info.timeout_ns != 0)
    deadline_ = loop_->now() +
                std::chrono::nanoseconds(std::min<std::uint64_t>(info.timeout_ns, std::uint64_t{1} << 60));
  if (method_->counters != nullptr) method_->counters->accepted.add();
  executor_ = method_->non_blocking ? static_cast<Executor*>(loop_.get()) : &host_->handlers();
}

IncomingCall::~IncomingCall() {
  if (!answered_) fail(Error(ErrorKind::internal, "the handler dropped the call without a reply"));
  carrier_->call_ended({.id = id(),
                        .bytes = message_->bytes(),
                        .notification = is_notification(),
                        .control = method_->control});
  if (deadline_timer_ != 0) loop_->dispatch([loop = loop_, timer = deadline_timer_] { loop->cancel(timer); });
  if (passed_ != nullptr) passed_->leave();
  slots() = Slots();  // destroys the slots before active_
}

std::shared_ptr<Executor> IncomingCall::share_executor() const {
  if (kept_executor_ != nullptr) return kept_executor_;
  if (executor_ == loop_.get()) return loop_;
  return {host_, executor_};
}

std::optional<std::string> IncomingCall::metadata(const std::string& key) {
  const auto section = message_->section(metadata_section);
  if (!section) return std::nullopt;
  auto all = Codec<std::map<std::string, std::string>>::decode(*section);
  const auto found = all.find(key);
  return found == all.end() ? std::nullopt : std::optional(std::move(found->second));
}

bool IncomingCall::is_late() const { return deadline_ && loop_->now() >= *deadline_; }

bool IncomingCall::cancelled() const { return is_late() || was_cancelled(); }

void IncomingCall::cancel_job_threw(const std::exception_ptr& exception) noexcept {
  loop_->exceptions()->take("a callback of on_cancel()", exception);
}

// The caller also cancels the call at the deadline, but its message may not arrive.
void IncomingCall::first_cancel_job() {
  if (!deadline_) return;
  const std::shared_ptr<Loop> loop = loop_;
  if (!loop->running_here()) return loop->post([self = share()] { self->first_cancel_job(); });
  deadline_timer_ = loop->schedule(*deadline_, [weak = weak_from_this()] {
    const auto call = std::static_pointer_cast<IncomingCall>(weak.lock());
    if (call == nullptr) return;
    call->deadline_timer_ = 0;
    call->deadline_struck_ = true;
    call->cancel();
  });
}

void IncomingCall::set_loop(const std::shared_ptr<Loop>& loop) {
  if (executor_ == loop_.get()) executor_ = loop.get();
  loop_ = loop;
}

void IncomingCall::set_executor(std::shared_ptr<Executor> executor) {
  kept_executor_ = std::move(executor);
  executor_ = kept_executor_.get();
}

void IncomingCall::replace_argument(std::size_t i, ValueReader value,
                                    std::shared_ptr<IncomingMessage> source) {
  if (replaced_.empty())
    for (std::size_t n = 0; n < argument_count(); ++n) replaced_.push_back(message_->argument(n));
  replaced_.at(i) = value;
  sources_.push_back(std::move(source));
}

void IncomingCall::run() {
  if (method_->needs_object && object_ == nullptr)
    return fail(
        Error(ErrorKind::not_found, "'" + method_->name +
                                        "' is a method of objects, and this agent serves no object of its "
                                        "type: serve() an object, or call the method by an RRef"));
  if (method_->gate != nullptr) {
    at_gate_ = true;
    return method_->gate->enter(share());
  }
  admitted(nullptr);
}

void IncomingCall::admitted(std::shared_ptr<MethodGate> gate) {
  passed_ = std::move(gate);
  at_gate_ = false;
  queue_ = executor_;
  if (executor_ == loop_.get() && loop_->running_here()) return begin();
  executor_->post([self = share()] { self->begin(); });
}

void IncomingCall::begin() {
  if (cancelled())
    return fail(Error(is_late() ? ErrorKind::deadline_exceeded : ErrorKind::cancelled,
                      "the call ended before its handler ran"));
  intercept(0);
}

void IncomingCall::intercept(std::size_t next) {
  const auto& all = host_->hooks().interceptors();
  if (next == all.size()) return enter_queue();
  Result<Task<void>> task = capture([&] { return all[next]->accept(*this); });
  if (!task.ok()) return fail(task.error());
  std::move(task).get().start_here(*executor_, nullptr, [self = share(), next](Result<void>&& result) {
    if (!result.ok()) return self->fail(result.error());
    self->intercept(next + 1);
  });
}

// Called before the reply is sent, so that the counters include the call when the caller receives the reply.
void IncomingCall::note_answer(const std::exception_ptr& error) {
  if (const auto& counters = method_->counters) {
    if (error != nullptr) counters->failed.add();
    counters->answered.add();
  }
  for (const auto& interceptor : host_->hooks().interceptors()) interceptor->answered(*this, error);
}

void IncomingCall::enter_queue() {
  if (!admission_) return execute();
  try {
    std::exchange(admission_, nullptr)([self = share()] { self->execute(); });
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::execute() {
  try {
    host_->hooks().make_contexts(*this);
    for (const auto& part : parts_) part->read(*message_);
    began_ = true;
    method_->run(share());
    returned_ = true;
  } catch (...) {
    fail(std::current_exception());
  }
}

const KeptType KeptType::unknown;

void IncomingCall::keep(KeptValue value) {
  try {
    // The result stays on this agent. Layers may add sections to the empty reply.
    sink_->keep(std::move(value));
    reply([](ValueWriter writer) { writer.set_nil(); });
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::reply(UniqueFunction<void(ValueWriter)> encode) {
  if (answered_.load()) return;
  if (is_notification()) {
    // No caller waits for the result, and parts must not pass references in a message that is never sent.
    if (!answered_.exchange(true)) note_answer(nullptr);
    return;
  }
  // The caller's deadline has passed before. A handler may have returned because of that.
  if (is_late()) return fail(Error(ErrorKind::deadline_exceeded, "the deadline passed before the reply"));
  OutboundFrame frame;
  try {
    auto message = OutgoingMessage::reply();
    message->set_route(&host_->layers(), nullptr);
    message->set_serving(this);
    message->set_destination(std::shared_ptr<const AgentId>(caller_, &caller_->id));
    for (const auto& part : parts_) part->write(*message);
    encode(message->result());
    for (auto& part : message->take_parts()) parts_.push_back(std::move(part));
    for (const auto& part : parts_) part->seal(*message);
    frame = message->seal_reply(id());
    carrier_->check_fits(frame);
  } catch (...) {
    give_up_reply();
    return fail(std::current_exception());
  }
  if (answered_.exchange(true)) return give_up_reply();
  note_answer(nullptr);
  carrier_->send_reply(id(), std::move(frame), std::move(active_));
}

void IncomingCall::give_up_reply() {
  const auto unsent =
      std::make_exception_ptr(Error(ErrorKind::aborted, "the answer was not sent", Execution::not_sent));
  for (const auto& part : std::exchange(parts_, {})) part->ended(unsent);
}

void IncomingCall::refuse(std::exception_ptr error) {
  began_ = false;
  fail(std::move(error));
}

void IncomingCall::fail(std::exception_ptr error) {
  if (answered_.exchange(true)) return;
  note_answer(error);
  FailureInfo failure = describe(*host_, error);
  if (deadline_struck_ && failure.kind == ErrorKind::cancelled) failure.kind = ErrorKind::deadline_exceeded;
  failure.worker = host_->id().name;
  failure.method = method_->name;
  failure.not_run = !began_;
  // During shutdown, layers have released the objects of calls, and handlers may fail because of that. Such
  // an error would hide the loss of the agent, so no failure is sent: the caller sees the end of the
  // connection.
  if (!host_->ended()) carrier_->send_failure(message_->prefix(), failure, std::move(active_));
  // The failure is sent to the caller first, because the sink may send answers in the same session.
  if (sink_ != nullptr) loop_->post([sink = sink_, error] { sink->failed(error); });
}

void IncomingCall::enter() {
  for (const auto& context : contexts_) context->enter();
}
void IncomingCall::leave() {
  for (auto i = contexts_.rbegin(); i != contexts_.rend(); ++i) (*i)->leave();
}

}  // namespace weft::rpc
