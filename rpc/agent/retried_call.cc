#include <weft/rpc/agent/retried_call.h>

#include <weft/rpc/agent/agent_core.h>
#include <weft/rpc/agent/route.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// Differs between agents and between calls, and is the same in a simulation's every run.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

bool was_not_sent(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    return failure.execution() == Execution::not_sent;
  } catch (...) {
    return false;
  }
}

// The last attempt was not sent, but one before it may have run.
std::exception_ptr with_earlier_attempts(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& remote) {
    return std::make_exception_ptr(
        RemoteError(remote.kind(), remote.detail(), remote.worker(), remote.method(), remote.type()));
  } catch (const Error& own) {
    return std::make_exception_ptr(Error(own.kind(),
                                         std::string(own.what()) + "; an attempt before it may have run",
                                         Execution::maybe_executed));
  }
}

}  // namespace

class RetriedCall::Attempt final : public PendingCall {
 public:
  Attempt(OutgoingCall call, std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route,
          std::shared_ptr<RetriedCall> whole)
      : PendingCall(std::move(call), std::move(core), std::move(route)), whole_(std::move(whole)) {}
  ~Attempt() override { drop(); }

 private:
  void done(Result<Reply> result) override {
    std::exchange(whole_, nullptr)->ended(std::move(result), *this);
  }
  std::shared_ptr<RetriedCall> whole_;
};

RetriedCall::RetriedCall(OutgoingCall call, std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route,
                         PendingCall::CancelSources sources, Done done)
    : core_(std::move(core)),
      route_(std::move(route)),
      sources_(std::move(sources)),
      call_(std::move(call)),
      borrowed_(call_.message().take_borrowed()),
      done_(std::move(done)) {
  request_ = call_.message().seal_request({}, 0, 0);
}

void RetriedCall::attempt() {
  OutgoingCall again(call_.method_, call_.id_, OutgoingMessage::again(request_));
  again.signature = call_.signature;
  again.deadline = call_.deadline;
  again.only = call_.only;
  again.serving = call_.serving;
  again.background = call_.background;
  again.attempt = attempts_++;
  if (again.attempt != 0) AgentCounters::count(core_->counters().calls_retried);
  if (!borrowed_.empty()) again.message().borrow([self = shared_from_this()] { return self->unchanged(); });
  auto pending = std::make_shared<Attempt>(std::move(again), core_, route_, shared_from_this());
  bool cancelled = false;
  {
    std::lock_guard lock(mutex_);
    under_way_ = pending;
    cancelled = cancelled_;
  }
  if (cancelled) {
    pending->lose(ErrorKind::cancelled, "cancelled by the caller");
    return;
  }
  if (PendingCall::serve(pending, sources_)) route_->submit(std::move(pending));
}

bool RetriedCall::unchanged() {
  return std::all_of(borrowed_.begin(), borrowed_.end(), [](auto& same) { return same(); });
}

void RetriedCall::ended(Result<PendingCall::Reply> result, const PendingCall& attempt) {
  if (result.ok()) {
    route_->retry_budget().succeeded();
  } else if (is_retriable(result.error(), call_.idempotent) && !core_->ended()) {
    const auto wait =
        wait_before_retry(*call_.retry, attempts_, mix(core_->id().incarnation ^ mix(attempt.id())));
    const auto& loop = route_->loop();
    const bool in_time = wait && (!call_.deadline || later(loop->now(), *wait) < *call_.deadline);
    if (in_time && route_->retry_budget().take()) {
      may_have_run_ = may_have_run_ || !was_not_sent(result.error());
      const auto again = [self = shared_from_this(), wait = *wait, waits = core_->retry_waits()] {
        self->route_->loop()->schedule(later(self->route_->loop()->now(), wait),
                                       [self, waits] { self->attempt(); });
      };
      return loop->running_here() ? again() : loop->post(again);
    }
  }
  if (!result.ok() && may_have_run_ && was_not_sent(result.error()))
    result = with_earlier_attempts(result.error());
  const std::exception_ptr error = result.ok() ? nullptr : result.error();
  for (const auto& watch : std::exchange(call_.watches_, {})) watch->ended(error);
  std::exchange(done_, nullptr)(std::move(result), attempt);
}

void RetriedCall::cancel() {
  std::shared_ptr<PendingCall> pending;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    pending = under_way_.lock();
  }
  if (pending != nullptr) route_->cancel(std::move(pending));
}

}  // namespace weft::rpc
