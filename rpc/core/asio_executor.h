// AsioExecutor: adapts an Executor of weft to Asio, so that asio::awaitable coroutines resume on that
// Executor. Its execution context is the agent's loop: a timer or socket that is created with an AsioExecutor
// waits on the loop, and its handlers run on the Executor.
//
// A value. It shares the ownership of the Executor. All code that it runs has the given thread-local context.
// Thread-safe.
#pragma once

#include <weft/rpc/core/executor.h>

#include <asio/execution.hpp>
#include <asio/execution_context.hpp>

#include <memory>

namespace weft::rpc {

class AsioExecutor {
 public:
  // context: may be null; must live as long as `owner`.
  AsioExecutor(asio::execution_context& loop, Executor& executor, ContextSwitch* context,
               std::shared_ptr<void> owner)
      : loop_(&loop), executor_(&executor), context_(context), owner_(std::move(owner)) {}

  // The functions that Asio requires of an executor.
  asio::execution_context& query(asio::execution::context_t) const noexcept { return *loop_; }
  static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
    return asio::execution::blocking.never;
  }
  AsioExecutor require(asio::execution::blocking_t::never_t) const { return *this; }

  // Posts f, which then runs in the context.
  template <class F>
  void execute(F&& f) const {
    executor_->post([f = std::forward<F>(f), context = context_, owner = owner_]() mutable {
      ContextScope scope(context);
      auto run = std::move(f);  // destroyed within the scope
      run();
    });
  }

  friend bool operator==(const AsioExecutor& a, const AsioExecutor& b) noexcept {
    return a.executor_ == b.executor_ && a.owner_ == b.owner_;
  }

 private:
  asio::execution_context* loop_;
  Executor* executor_;
  ContextSwitch* context_;
  std::shared_ptr<void> owner_;
};

}  // namespace weft::rpc
