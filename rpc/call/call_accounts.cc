#include <weft/rpc/call/call_accounts.h>

#include <weft/rpc/transport/admission.h>

#include <algorithm>

namespace weft::rpc {

CallAccounts::CallAccounts(const Limits& limits)
    : limits_(limits), admission_(std::make_shared<Admission>(limits.in_flight_total)) {}

AgentCounts CallAccounts::counts() const {
  AgentCounts counts{counters_};
  counts.calls_made = next_call_ - 1;
  counts.serving_bytes = admission_->bytes();
  counts.waiting_bytes = outgoing_bytes_ + outgoing_values_;
  counts.serving = static_cast<std::uint64_t>(std::max<std::int64_t>(served_.all(), 0));
  counts.waiting = static_cast<std::uint64_t>(std::max<std::int64_t>(made_.all(), 0));
  return counts;
}

bool CallAccounts::outgoing_began(OutgoingSize size, bool background) {
  const std::int64_t others = background ? made_.work + made_.background++ : made_.background + made_.work++;
  bool within = static_cast<std::uint64_t>(std::max<std::int64_t>(others, 0)) < limits_.outgoing_calls;
  if (size.attached != 0) within &= outgoing_bytes_.fetch_add(size.attached) < limits_.outgoing_bytes;
  if (size.values != 0) within &= outgoing_values_.fetch_add(size.values) < limits_.outgoing_values;
  return within;
}

void CallAccounts::outgoing_ended(OutgoingSize size, bool background) {
  if (size.attached != 0) outgoing_bytes_ -= size.attached;
  if (size.values != 0) outgoing_values_ -= size.values;
  --(background ? made_.background : made_.work);
  check_drained();
}

std::shared_ptr<void> CallAccounts::retry_waits(OutgoingSize size) {
  ++retry_waits_;
  outgoing_bytes_ += size.attached;
  outgoing_values_ += size.values;
  return {nullptr, [self = shared_from_this(), size](void*) {
            self->outgoing_bytes_ -= size.attached;
            self->outgoing_values_ -= size.values;
            --self->retry_waits_;
          }};
}

bool CallAccounts::hold(std::uint64_t bytes, bool control, bool admitted) {
  if (!control && held_calls_.fetch_add(1) >= limits_.calls_total) {
    --held_calls_;
    return false;
  }
  if (control || admitted) {
    admission_->charge_anyway(bytes);
  } else if (!admission_->charge(bytes)) {
    --held_calls_;
    return false;
  }
  return true;
}

void CallAccounts::release(std::uint64_t bytes, bool control) {
  admission_->release(bytes);
  if (!control) --held_calls_;
}

void CallAccounts::call_ended(bool background) {
  --(background ? served_.background : served_.work);
  check_drained();
}

Future<void> CallAccounts::drain(const std::shared_ptr<Loop>& loop, std::chrono::nanoseconds timeout,
                                 const std::function<void()>& begun) {
  auto drain = std::make_shared<Draining>(loop);
  auto future = drain->promise.future();
  {
    MutexLock lock(mutex_);
    if (drain_ != nullptr) {
      drain->promise.fail(Error(ErrorKind::failed_precondition, "drain: the agent is already draining"));
      return future;
    }
    drain_ = drain;
  }
  draining_ = true;
  begun();
  loop->post([self = shared_from_this(), drain, timeout] {
    drain->timer = drain->loop->schedule(later(drain->loop->now(), timeout), [weak = std::weak_ptr(self)] {
      if (const auto accounts = weak.lock())
        accounts->end_drain(Error(ErrorKind::deadline_exceeded,
                                  std::to_string(accounts->served()) + " calls are still served, and " +
                                      std::to_string(accounts->made()) +
                                      " made calls are in flight, after the timeout of drain()"));
    });
    self->check_drained();
  });
  return future;
}

void CallAccounts::end_drain(Result<void> result) {
  std::shared_ptr<Draining> drain;
  {
    MutexLock lock(mutex_);
    drain = std::exchange(drain_, nullptr);
  }
  if (drain == nullptr) return;
  drain->loop->post(
      [drain] { drain->loop->cancel(drain->timer); });  // posted after the job that sets the timer
  drain->promise.complete(std::move(result));
}

}  // namespace weft::rpc
