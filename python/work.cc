#include "work.h"

#include <weft/rpc/core/error.h>

#include <c10/util/Exception.h>

namespace weft::python {

std::exception_ptr torch_error(const std::exception_ptr& error) {
  using rpc::ErrorKind;
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const ErrorKind kind = rpc::error_kind(error);
  if (kind == ErrorKind::invalid_argument || kind == ErrorKind::type_mismatch ||
      kind == ErrorKind::unsupported || kind == ErrorKind::failed_precondition)
    return std::make_exception_ptr(c10::Error(here, "weft: " + rpc::what_of(error)));
  const bool is_closed = kind == ErrorKind::peer_lost || kind == ErrorKind::shut_down;
  const std::string prefix = kind == ErrorKind::deadline_exceeded ? "weft: Timed out in "
                             : is_closed                          ? "weft: Connection closed by peer: "
                                                                  : "weft: ";
  return std::make_exception_ptr(c10::DistBackendError(here, prefix + rpc::what_of(error)));
}

void Work::follow(const c10::intrusive_ptr<Work>& work, rpc::Future<void> done) {
  done.then(
      [work](rpc::Result<void>&& done) { work->complete(done.ok() ? nullptr : torch_error(done.error())); });
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (std::unique_lock lock(mutex_);
      timeout != kNoTimeout && !cv_.wait_for(lock, timeout, [this] { return completed_; }))
    C10_THROW_ERROR(DistBackendError, c10::str("weft: Timed out waiting ", timeout.count(), "ms for ",
                                               opTypeToString(opType_)));
  return c10d::Work::wait(kNoTimeout);
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::unique_lock lock(mutex_);
  if (future_) return future_;
  const c10::TypePtr tensors = c10::ListType::ofTensors();
  future_ = c10::make_intrusive<c10::ivalue::Future>(outputs_.size() > 1 ? c10::ListType::create(tensors)
                                                                         : tensors);
  // Nobody has added a callback yet.
  if (settled_ && exception_)
    future_->setError(exception_);
  else if (settled_)
    future_->markCompleted(value());
  return future_;
}

void Work::complete(const std::exception_ptr& error) {
  finish(error);
  const std::unique_lock lock(mutex_);
  settled_ = true;
  if (!future_) return;
  callbacks_->post(
      [pool = callbacks_.get(), future = future_, value = error ? c10::IValue() : value(), error] {
        const rpc::HandlerPool::Blocking scope(*pool);
        error ? future->setError(error) : future->markCompleted(value);
      });
}

}  // namespace weft::python
