#include <weft/rpc/tensor/thread_state.h>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>

#include <optional>

namespace weft::tensor {
namespace {

class ThreadState final : public rpc::ContextSwitch {
 public:
  explicit ThreadState(bool grad_mode) : grad_mode_(grad_mode) {}

  void enter() override {
    outside_.emplace();
    if (inside_) {
      at::ThreadLocalState::setThreadLocalState(*inside_);
    } else {
      c10::GradMode::set_enabled(grad_mode_);
    }
  }
  void leave() override {
    inside_.emplace();
    at::ThreadLocalState::setThreadLocalState(*outside_);
  }

 private:
  bool grad_mode_;
  std::optional<at::ThreadLocalState> inside_, outside_;
};

}  // namespace

std::unique_ptr<rpc::ContextSwitch> make_thread_state(bool grad_mode) {
  return std::make_unique<ThreadState>(grad_mode);
}

}  // namespace weft::tensor
