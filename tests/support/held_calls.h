// HeldCalls: delays the calls of one method at an agent until the test releases them. Passed in
// AgentOptions::interceptors. Thread-safe.
#pragma once

#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/testing/wait.h>

#include <mutex>
#include <string>
#include <vector>

namespace weft::test {

class HeldCalls final : public rpc::Interceptor {
 public:
  explicit HeldCalls(std::string method) : method_(std::move(method)) {}

  rpc::Task<void> accept(rpc::CallContext& call) override {
    if (call.method() != method_) co_return;
    rpc::Future<void> released = hold();
    held_.set();
    co_await std::move(released);
  }
  void wait() { held_.wait(); }  // until a call is held
  void release() {               // releases these calls and all later ones
    std::vector<rpc::Promise<void>> waiting;
    {
      std::lock_guard lock(mutex_);
      open_ = true;
      waiting.swap(waiting_);
    }
    for (auto& one : waiting) one.complete(rpc::Result<void>{});
  }

 private:
  rpc::Future<void> hold() {
    std::lock_guard lock(mutex_);
    if (open_) return rpc::Future<void>::made(rpc::Result<void>{});
    return waiting_.emplace_back().future();
  }

  const std::string method_;
  Event held_;
  std::mutex mutex_;  // guards the members below
  bool open_ = false;
  std::vector<rpc::Promise<void>> waiting_;
};

}  // namespace weft::test
