// Work: a collective or message in flight, as a c10d::Work. torch_error(): weft's errors as PyTorch's
// exceptions.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/handler_pool.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

namespace weft::python {

// DistBackendError, with the texts of Gloo on which programs rely: "Timed out", and "Connection closed by
// peer" for a rank that was lost or has left. For arguments that weft refuses c10::Error.
std::exception_ptr torch_error(const std::exception_ptr& error);

// Runs f, and throws weft's errors as torch_error().
template <class F>
auto with_torch_errors(F f) {
  try {
    return f();
  } catch (const rpc::Error&) {
    std::rethrow_exception(torch_error(std::current_exception()));
  }
}

// Thread-safe, as c10d::Work.
class Work final : public c10d::Work {
 public:
  // callbacks: runs the callbacks of getFuture(), which may block. title: for profiles. outputs: one list, or
  // one for each input.
  Work(std::shared_ptr<rpc::HandlerPool> callbacks, int rank, c10d::OpType operation, const char* title,
       const std::vector<at::Tensor>& inputs, std::vector<std::vector<at::Tensor>> outputs,
       std::uint64_t sequence, std::chrono::milliseconds timeout)
      : c10d::Work(rank, operation, title, inputs),
        callbacks_(std::move(callbacks)),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        timeout_(timeout) {}

  // Completes the work with the future, on its thread.
  static void follow(const c10::intrusive_ptr<Work>& work, rpc::Future<void> done);

  void set_source(int rank) { source_ = rank; }  // the rank that has sent the message; before the completion
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override {
    return outputs_.empty() ? std::vector<at::Tensor>() : outputs_.front();
  }
  std::uint64_t getSequencenumber() const override { return sequence_; }
  std::chrono::milliseconds getTimeout() const override { return timeout_; }
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void complete(const std::exception_ptr& error);
  c10::IValue value() { return outputs_.size() > 1 ? c10::IValue(outputs_) : c10::IValue(result()); }

  const std::shared_ptr<rpc::HandlerPool> callbacks_;
  const std::vector<std::vector<at::Tensor>> outputs_;
  const std::uint64_t sequence_;
  const std::chrono::milliseconds timeout_;
  std::atomic<int> source_ = -1;
  bool settled_ = false;                            // whether complete() has looked at future_
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // null: nobody has asked for it
};

}  // namespace weft::python
