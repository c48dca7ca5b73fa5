// EngineBackward: tells its owner when a backward of LibTorch's engine has completed or failed.
//
// The engine holds the object from start() on, in a callback that it calls at the end of the backward. If the
// engine drops the callback without a call, or if Owner::backward_ended() throws, the backward has failed,
// and the destructor calls Owner::failed(). Both functions run on a thread of the engine. The owner creates
// the object before it locks its mutex, and calls start() within the backward. Owned by the owner until then.
#pragma once

#include <weft/rpc/core/result.h>

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

namespace weft::training {

template <class Owner>
class EngineBackward final : public std::enable_shared_from_this<EngineBackward<Owner>> {
 public:
  explicit EngineBackward(std::weak_ptr<Owner> owner) : owner_(std::move(owner)) {}
  EngineBackward(const EngineBackward&) = delete;
  EngineBackward& operator=(const EngineBackward&) = delete;
  ~EngineBackward() {
    if (const auto owner = started_ ? owner_.lock() : nullptr) (void)rpc::capture([&] { owner->failed(); });
  }

  void start() {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = this->shared_from_this()] { self->end(); });
    started_ = true;
  }

 private:
  void end() {
    const auto owner = owner_.lock();
    if (owner == nullptr) return;
    owner->backward_ended();
    started_ = false;
  }

  const std::weak_ptr<Owner> owner_;
  bool started_ = false;
};

}  // namespace weft::training
