#include <weft/rpc/call/retried_call.h>

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/core/while_alive.h>

#include <algorithm>

namespace weft::rpc {
namespace {

bool was_not_sent(const std::exception_ptr& error) {
  const auto failure = as_error(error);
  return failure && failure->execution() == Execution::not_sent;
}

// For a call whose last attempt was not sent, while an earlier attempt may have run.
std::exception_ptr with_earlier_attempts(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& remote) {
    RemoteError error(remote.kind(), remote.detail(), remote.worker(), remote.method(), remote.type());
    error.set_payload(remote.payload());
    return std::make_exception_ptr(error);
  } catch (const Error& own) {
    return std::make_exception_ptr(Error(own.kind(),
                                         std::string(own.what()) + "; an earlier attempt may have run",
                                         Execution::maybe_executed));
  }
}

}  // namespace

RetriedCall::RetriedCall(OutgoingCall call, std::shared_ptr<CallHost> host, std::shared_ptr<CallRoute> route,
                         PendingCall::CancelSources sources, Done done)
    : host_(std::move(host)),
      route_(std::move(route)),
      sources_(std::move(sources)),
      call_(std::move(call)),
      borrowed_(call_.message().take_borrowed()),
      done_(std::move(done)) {
  request_ = call_.message().seal_request({}, 0, 0);
}

// Adds one cancel job for all attempts, so that a cancellation also ends the waits between attempts.
void RetriedCall::begin() {
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (sources_[i] != nullptr)
      cancel_jobs_[i] = sources_[i]->on_cancel(while_alive(this, &RetriedCall::cancel));
  attempt();
}

void RetriedCall::attempt() {
  OutgoingCall again(call_.method_, call_.id_, OutgoingMessage::again(request_));
  static_cast<CallSettings&>(again) = static_cast<const CallSettings&>(call_);
  again.attempt = attempts_++;
  if (!borrowed_.empty())
    again.message().borrow([self = shared_from_this()] {
      return std::all_of(self->borrowed_.begin(), self->borrowed_.end(), [](auto& same) { return same(); });
    });
  auto ended = [self = shared_from_this()](Result<PendingCall::Reply>&& result, const PendingCall& attempt) {
    self->ended(std::move(result), attempt);
  };
  auto pending =
      std::make_shared<CallWith<decltype(ended)>>(std::move(again), *host_, route_, std::move(ended));
  if (attempts_in_flight_.cancelled()) {
    pending->lose(ErrorKind::cancelled, "cancelled by the caller");
  } else if ((attempts_ != 1 || !pending->refuse_excess()) &&
             PendingCall::serve(pending, {attempts_in_flight_.source(), nullptr})) {
    if (attempts_ != 1) host_->counters().calls_retried.add();
    route_->submit(std::move(pending));
  }
}

void RetriedCall::wait(std::chrono::nanoseconds span, std::shared_ptr<void> waits) {
  if (attempts_in_flight_.cancelled()) return attempt();
  waits_ = std::move(waits);
  const auto& loop = route_->loop();
  timer_ = loop->schedule(later(loop->now(), span), [self = shared_from_this()] { self->end_wait(); });
}

// Called when the wait has ended, or when the call was cancelled. In the second case the next attempt fails
// with `cancelled`.
void RetriedCall::end_wait() {
  if (timer_ == 0) return;
  route_->loop()->cancel(std::exchange(timer_, 0));
  const auto waits = std::move(waits_);
  attempt();
}

void RetriedCall::ended(Result<PendingCall::Reply> result, const PendingCall& attempt) {
  // Refused by this agent, which does not wait until its limits permit the call.
  const bool refused = attempts_ == 1 && !attempt.within_limits();
  if (result.ok()) {
    route_->retry_budget().succeeded();
  } else if (is_retriable(result.error(), call_.idempotent) && !host_->ended() && !refused) {
    const auto wait =
        wait_before_retry(*call_.retry, attempts_, jitter(host_->id().incarnation, attempt.id()));
    const auto& loop = route_->loop();
    const bool in_time = wait && (!call_.deadline || later(loop->now(), *wait) < *call_.deadline);
    if (in_time && route_->retry_budget().take()) {
      may_have_run_ = may_have_run_ || !was_not_sent(result.error());
      auto again = [self = shared_from_this(), wait = *wait,
                    waits = host_->accounts()->retry_waits(attempt.size())]() mutable {
        self->wait(wait, std::move(waits));
      };
      return loop->dispatch(std::move(again));
    }
  }
  if (!result.ok() && may_have_run_ && was_not_sent(result.error()))
    result = with_earlier_attempts(result.error());
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (cancel_jobs_[i] != 0) sources_[i]->forget_cancel(cancel_jobs_[i]);
  const std::exception_ptr error = result.ok() ? nullptr : result.error();
  for (const auto& watch : std::exchange(call_.watches_, {})) watch->ended(error);
  std::exchange(done_, nullptr)(std::move(result), attempt);
}

std::string RetriedCall::title() const { return route_->peer_name() + ": " + call_.method_; }

void RetriedCall::cancel() {
  attempts_in_flight_.cancel();
  route_->loop()->post([self = shared_from_this()] { self->end_wait(); });
}

}  // namespace weft::rpc
