#include "work.h"

#include <weft/rpc/core/error.h>

#include <c10/util/Exception.h>

namespace weft::python {

std::exception_ptr torch_error(const std::exception_ptr& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string text = "weft: " + rpc::what_of(error);
  switch (rpc::error_kind(error)) {
    case rpc::ErrorKind::deadline_exceeded:
      return std::make_exception_ptr(
          c10::DistBackendError(here, "weft: Timed out in " + rpc::what_of(error)));
    case rpc::ErrorKind::peer_lost:
    case rpc::ErrorKind::shut_down:
      return std::make_exception_ptr(
          c10::DistBackendError(here, "weft: Connection closed by peer: " + rpc::what_of(error)));
    case rpc::ErrorKind::invalid_argument:
    case rpc::ErrorKind::type_mismatch:
    case rpc::ErrorKind::unsupported:
    case rpc::ErrorKind::failed_precondition:
      return std::make_exception_ptr(c10::Error(here, text));
    default:
      return std::make_exception_ptr(c10::DistBackendError(here, text));
  }
}

namespace {

void settle(c10::ivalue::Future& future, const std::vector<std::vector<at::Tensor>>& outputs,
            const std::exception_ptr& error) {
  if (error) {
    future.setError(error);
  } else if (outputs.size() > 1) {
    future.markCompleted(c10::IValue(outputs));
  } else {
    future.markCompleted(c10::IValue(outputs.empty() ? std::vector<at::Tensor>() : outputs.front()));
  }
}

}  // namespace

Work::Work(std::shared_ptr<rpc::HandlerPool> callbacks, int rank, c10d::OpType operation, const char* title,
           const std::vector<at::Tensor>& inputs, std::vector<std::vector<at::Tensor>> outputs,
           std::uint64_t sequence, std::chrono::milliseconds timeout)
    : c10d::Work(rank, operation, title, inputs),
      callbacks_(std::move(callbacks)),
      outputs_(std::move(outputs)),
      sequence_(sequence),
      timeout_(timeout) {}

void Work::follow(const c10::intrusive_ptr<Work>& work, rpc::Future<int> source) {
  source.then([work](rpc::Result<int>&& source) {
    if (source.ok()) work->source_ = source.value();
    work->complete(source.ok() ? nullptr : torch_error(source.error()));
  });
}

std::vector<at::Tensor> Work::result() {
  return outputs_.empty() ? std::vector<at::Tensor>() : outputs_.front();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto is_completed = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_completed);
  } else if (!cv_.wait_for(lock, timeout, is_completed)) {
    C10_THROW_ERROR(DistBackendError, c10::str("weft: Timed out waiting ", timeout.count(), "ms for ",
                                               opTypeToString(opType_)));
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::unique_lock lock(mutex_);
  if (future_) return future_;
  const c10::TypePtr tensors = c10::ListType::ofTensors();
  future_ = c10::make_intrusive<c10::ivalue::Future>(outputs_.size() > 1 ? c10::ListType::create(tensors)
                                                                         : tensors);
  if (settled_) settle(*future_, outputs_, exception_);  // nobody has added a callback yet
  return future_;
}

void Work::complete(const std::exception_ptr& error) {
  finish(error);
  const std::unique_lock lock(mutex_);
  settled_ = true;
  if (!future_) return;
  callbacks_->post([pool = callbacks_.get(), future = future_, outputs = outputs_, error] {
    const rpc::HandlerPool::Blocking scope(*pool);
    settle(*future, outputs, error);
  });
}

}  // namespace weft::python
