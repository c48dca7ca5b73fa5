#include <weft/rpc/agent/incoming_call.h>

#include <weft/rpc/agent/agent_core.h>
#include <weft/rpc/agent/link.h>

#include <cxxabi.h>

#include <cstdlib>

namespace weft::rpc {
namespace {

std::string type_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                              std::free);
  return status == 0 ? name.get() : type.name();
}

FailureInfo describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& remote) {
    // A nested call failed: the caller learns of the first worker that the error comes from.
    return {remote.kind(), remote.what(), {}, {}, {}, false};
  } catch (const Error& own) {
    return {own.kind(), own.what(), {}, {}, {}, false};
  } catch (const std::exception& other) {
    return {ErrorKind::handler_failed, other.what(), {}, {}, type_name(typeid(other)), false};
  } catch (...) {
    return {ErrorKind::handler_failed, "an exception that is no std::exception", {}, {}, {}, false};
  }
}

}  // namespace

ActiveCall::ActiveCall(std::shared_ptr<AgentCore> core) : core_(std::move(core)) { core_->call_began(); }
ActiveCall::~ActiveCall() {
  if (core_ != nullptr) core_->call_ended();
}

IncomingCall::IncomingCall(std::shared_ptr<AgentCore> core, std::shared_ptr<Link> link,
                           std::shared_ptr<const MethodEntry> method,
                           std::shared_ptr<IncomingMessage> message, std::shared_ptr<const Caller> caller,
                           std::optional<Clock::time_point> deadline, ActiveCall active)
    : core_(std::move(core)),
      link_(std::move(link)),
      method_(std::move(method)),
      message_(std::move(message)),
      caller_(std::move(caller)),
      deadline_(deadline),
      active_(std::move(active)),
      object_(method_->object) {
  executor_ = method_->non_blocking ? static_cast<Executor*>(link_->loop().get()) : &core_->handlers();
  const std::size_t count = message_->argument_count();
  arguments_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) arguments_.push_back(message_->argument(i));
}

IncomingCall::~IncomingCall() {
  if (!answered_)
    fail(std::make_exception_ptr(Error(ErrorKind::internal, "the call was dropped without an answer")));
  link_->call_ended(id(), message_->bytes());
}

asio::execution_context& IncomingCall::asio_context() const { return link_->loop()->context(); }

std::uint64_t IncomingCall::id() const { return message_->prefix().call_id; }

bool IncomingCall::cancelled() const {
  if (deadline_ && link_->loop()->now() >= *deadline_) return true;
  std::lock_guard lock(mutex_);
  return cancelled_;
}

CallContext::CancelJobId IncomingCall::on_cancel(Job job) {
  {
    std::lock_guard lock(mutex_);
    if (!cancelled_) {
      cancel_jobs_.emplace(++last_cancel_job_, std::move(job));
      return last_cancel_job_;
    }
  }
  job();
  return 0;
}

void IncomingCall::forget_cancel(CancelJobId id) {
  Job job;  // ends after the lock
  std::lock_guard lock(mutex_);
  if (const auto found = cancel_jobs_.find(id); found != cancel_jobs_.end()) {
    job = std::move(found->second);
    cancel_jobs_.erase(found);
  }
}

void IncomingCall::cancel() {
  std::map<CancelJobId, Job> jobs;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(cancelled_, true)) return;
    jobs = std::move(cancel_jobs_);
  }
  for (auto& [id, job] : jobs) job();
}

void IncomingCall::set_executor(std::shared_ptr<Executor> executor) {
  kept_executor_ = std::move(executor);
  executor_ = kept_executor_.get();
}

void IncomingCall::replace_argument(std::size_t i, ValueReader value,
                                    std::shared_ptr<IncomingMessage> source) {
  arguments_.at(i) = value;
  sources_.push_back(std::move(source));
}

void IncomingCall::run() {
  if (method_->needs_object && object_ == nullptr)
    return fail(std::make_exception_ptr(
        Error(ErrorKind::not_found,
              "'" + method_->name + "' needs an object: this agent serves none of that type")));
  if (executor_ == link_->loop().get() && link_->loop()->running_here()) return begin();
  executor_->post([self = share()] { self->begin(); });
}

void IncomingCall::begin() {
  if (cancelled())
    return fail(std::make_exception_ptr(Error(
        deadline_ && link_->loop()->now() >= *deadline_ ? ErrorKind::deadline_exceeded : ErrorKind::cancelled,
        "ended before its handler ran")));
  if (!admission_) return execute();
  try {
    std::exchange(admission_, nullptr)([self = share()] { self->execute(); });
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::execute() {
  try {
    core_->make_contexts(*this);
    for (const auto& part : parts_) part->read(*message_);
    began_ = true;
    method_->run(share());
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::keep(KeptValue value) {
  try {
    // The result stays, but layers may have something to say beside the empty answer.
    sink_->keep(std::move(value));
    reply([](ValueWriter writer) { writer.set_nil(); });
  } catch (...) {
    fail(std::current_exception());
  }
}

void IncomingCall::reply(UniqueFunction<void(ValueWriter)> encode) {
  if (answered_.load()) return;
  if ((message_->prefix().flags & frame_flags::notify) != 0) {
    answered_ = true;  // nobody waits for it, and nothing may be handed over in a message that is never sent
    return;
  }
  OutboundFrame frame;
  try {
    auto message = OutgoingMessage::reply();
    message->set_route(&core_->layers(), nullptr);
    message->set_destination(std::shared_ptr<const AgentId>(caller_, &caller_->id));
    for (const auto& part : parts_) part->write(*message);
    encode(message->result());
    for (auto& part : message->take_parts()) parts_.push_back(std::move(part));
    for (const auto& part : parts_) part->seal(*message);
    frame = message->seal_reply(id());
    check_outgoing(frame, core_->options().limits);
  } catch (...) {
    give_up_reply();
    return fail(std::current_exception());
  }
  if (answered_.exchange(true)) return give_up_reply();
  link_->send_reply(std::move(frame), std::move(active_));
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
  FailureInfo failure = describe(error);
  failure.worker = core_->id().name;
  failure.method = method_->name;
  failure.not_run = !began_;
  link_->reply(message_->prefix(), failure, std::move(active_));
  // Who made the call learns first: what the sink does may send answers over the same link.
  if (sink_ != nullptr) link_->loop()->post([sink = sink_, error] { sink->failed(error); });
}

void IncomingCall::AllContexts::enter() {
  for (const auto& context : call_.contexts_) context->enter();
}
void IncomingCall::AllContexts::leave() {
  for (auto i = call_.contexts_.rbegin(); i != call_.contexts_.rend(); ++i) (*i)->leave();
}

}  // namespace weft::rpc
