#include <weft/rpc/call/pending_call.h>

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/core/duration_text.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// Small values are not counted: the limit on the number of calls bounds them.
OutgoingSize size_of(OutgoingMessage& message) {
  constexpr std::uint64_t small = 1024;
  const std::uint64_t values = message.header_bytes();
  return {.attached = message.attached_bytes(), .values = values > small ? values : 0};
}

// The remedy at the callee, for failures whose text does not name one.
std::string remedy(const std::string& method, const FailureInfo& failure) {
  const bool unknown = failure.kind == ErrorKind::not_found && failure.not_run && failure.method.empty();
  if (!unknown) return {};
  if (!method.ends_with(".new")) return ": it must serve() the method first";
  return ": it must permit peers to create a '" + method.substr(0, method.size() - 4) +
         "', by agent.allow_create<T>()";
}

}  // namespace

PendingCall::PendingCall(OutgoingCall&& call, const CallHost& host, std::shared_ptr<CallRoute> route)
    : accounts_(host.accounts()),
      id_(accounts_->next_call_id()),
      route_(std::move(route)),
      call_(std::move(call)),
      made_(host.call_time(*route_->loop())),
      size_(size_of(*call_.message_)),
      within_limits_(accounts_->outgoing_began(size_, call_.background)) {
  call_.slots_ = {};
  call_.metadata_ = {};
}

PendingCall::~PendingCall() = default;

std::string PendingCall::title() const { return route_->peer_name() + ": " + call_.method_; }

void PendingCall::drop() {
  if (!finished()) lose(ErrorKind::shut_down, "the call was dropped: its agent has ended");
}

bool PendingCall::serve(const std::shared_ptr<PendingCall>& call, const CancelSources& sources) {
  // Store all sources first: the first on_cancel() may end the call.
  for (std::size_t i = 0; i < sources.size(); ++i) call->served_[i].source = sources[i];
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == nullptr) continue;
    const auto job = sources[i]->on_cancel([weak = std::weak_ptr(call)] {
      if (auto pending = weak.lock()) pending->route()->cancel(pending);
    });
    if (job == 0) {  // the source was cancelled before
      call->lose(ErrorKind::cancelled, "the call that it serves was cancelled");
      return false;
    }
    // The call may have ended meanwhile.
    if (call->served_[i].job.exchange(job) == Served::over) sources[i]->forget_cancel(job);
  }
  return true;
}

void PendingCall::clear_timer() {
  Loop::TimerId timer = timer_.load();
  while (timer != 0 && timer != timer_over)
    if (timer_.compare_exchange_weak(timer, 0))
      return timer_loop_->dispatch([loop = timer_loop_, timer] { loop->cancel(timer); });
}

void PendingCall::watch_time(const std::shared_ptr<PendingCall>& call, const std::shared_ptr<Loop>& loop,
                             bool connecting) {
  call->clear_timer();
  if (call->timer_.load() == timer_over) return;
  std::optional<Clock::time_point> when = call->deadline();
  bool late = true;
  if (connecting && call->connect_within()) {
    const auto timeout = later(loop->now(), *call->connect_within());
    late = when && *when <= timeout;
    if (!late) when = timeout;
  }
  if (!when) return;
  const auto timer = loop->schedule(*when, [weak = std::weak_ptr(call), late] {
    const auto over = weak.lock();
    if (over == nullptr) return;
    if (late) return over->give_up(ErrorKind::deadline_exceeded, "the deadline has passed");
    over->give_up(ErrorKind::unavailable, "no connection within " + seconds_text(*over->connect_within()) +
                                              " (CallOptions::connect_within)");
  });
  call->timer_loop_ = loop;  // complete() reads it if it finds the timer
  Loop::TimerId none = 0;
  if (!call->timer_.compare_exchange_strong(none, timer)) loop->cancel(timer);  // the call has ended
}

std::optional<PendingCall::SerializedCall> PendingCall::take_frame(const std::shared_ptr<PendingCall>& self,
                                                                   const Loop& loop,
                                                                   const SendTarget& target) {
  sent_by_ = target.sent_by;
  Stage expected = Stage::waiting;
  if (!stage_.compare_exchange_strong(expected, Stage::sent, std::memory_order_acq_rel)) return std::nullopt;
  RequestInfo info{call_.id_, call_.signature, 0, call_.attempt};
  if (call_.deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(*call_.deadline - loop.now()).count();
    info.timeout_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
  }
  for (auto& on_leaving : call_.message_->take_leaving()) on_leaving(target.peer);
  auto borrowed = call_.message_->take_borrowed();
  info.accepted = static_cast<std::uint32_t>(target.accepted);
  std::uint16_t flags = call_.notify ? frame_flags::notify : 0;
  if (call_.notify && call_.acknowledged) flags |= frame_flags::acknowledge;
  SerializedCall serialized{call_.message_->seal_request(info, id_, flags), nullptr};
  call_.message_.reset();
  if (borrowed.empty()) return serialized;
  serialized.check =
      std::make_shared<UniqueFunction<void()>>([self, borrowed = std::move(borrowed)]() mutable {
        if (std::all_of(borrowed.begin(), borrowed.end(), [](auto& unchanged) { return unchanged(); }))
          return;
        self->fail(Error(
            ErrorKind::argument_modified,
            self->title() +
                ": an argument changed before it was sent; pass rpc::Snapshot(tensor) or wait for the call",
            Execution::maybe_executed));
      });
  return serialized;
}

bool PendingCall::finish(Result<Reply> result) {
  const Stage before = end();
  if (before == Stage::over) return false;
  if (before == Stage::waiting) call_.message_.reset();
  complete(std::move(result));
  return true;
}

bool PendingCall::refuse_excess() {
  if (within_limits_) return false;
  lose(ErrorKind::resource_exhausted,
       "this agent has too many calls in flight, or too many bytes in them: " +
           std::to_string(accounts_->made()) +
           " calls, including this one (Limits::outgoing_calls, outgoing_bytes, outgoing_values)");
  return true;
}

void PendingCall::give_up(ErrorKind kind, const std::string& reason) {
  const Stage before = end();
  if (before == Stage::sent)
    if (const auto target = sent_by_.lock()) target->cancel(id_);
  lose_from(before, kind, reason);
}

void PendingCall::lose_from(Stage before, ErrorKind kind, const std::string& reason) {
  if (before == Stage::over) return;
  const bool sent = before == Stage::sent;
  // A queue may still own the call, so the message is destroyed here: borrowed arguments must be released
  // now.
  if (!sent) call_.message_.reset();
  complete(Error(kind, title() + ": " + reason + (sent ? " (may have run)" : " (was not sent)"),
                 sent ? Execution::maybe_executed : Execution::not_sent));
}

void PendingCall::complete(Result<Reply> result) {
  if (const auto timer = timer_.exchange(timer_over); timer != 0)
    timer_loop_->dispatch([loop = timer_loop_, timer] { loop->cancel(timer); });
  std::exception_ptr error = result.ok() ? nullptr : result.error();
  if (error == nullptr && result.value() != nullptr) {
    try {
      if (result.value()->has_sections())
        result.value()->slots().put(std::make_shared<AnsweredMethod>(AnsweredMethod{call_.method_}));
      for (const auto& part : call_.parts_) part->read(*result.value());
      if (auto failure = result.value()->failure()) {
        RemoteError remote(failure->kind, failure->message + remedy(call_.method_, *failure), failure->worker,
                           failure->method.empty() ? call_.method_ : failure->method, failure->type,
                           failure->not_run ? Execution::not_sent : Execution::maybe_executed);
        remote.set_payload(std::move(failure->payload));
        error = std::make_exception_ptr(remote);
      }
    } catch (...) {
      error = std::current_exception();
    }
  }
  if (!call_.parts_.empty())
    for (const auto& part : std::exchange(call_.parts_, {})) part->ended(error);
  for (Served& served : served_)
    if (const auto job = served.job.exchange(Served::over); job != 0)
      if (const auto source = served.source.lock()) source->forget_cancel(job);
  if (!call_.watches_.empty())
    for (const auto& watch : std::exchange(call_.watches_, {})) watch->ended(error);
  done(error != nullptr ? Result<Reply>(error) : std::move(result));
  accounts_->outgoing_ended(size_, call_.background);
}

}  // namespace weft::rpc
