// Future<T>: the result of an operation that runs already. Promise<T>: the end that completes the future.
//
// A future has one consumer; SharedFuture has several. The consumer uses get() on a thread of the program,
// co_await in a Task, then(f), or async_get(token) with any Asio completion token. as_result() makes a future
// whose value is the Result<T>, so that an error is a value instead of an exception. If a future is
// destroyed, the operation continues. cancel() requests an early end; the future still completes exactly
// once. A promise that is destroyed without completion completes with ErrorKind::aborted. An empty future,
// which was consumed or moved from, throws ErrorKind::failed_precondition when it is used. If a continuation
// throws, the agent that completes the future logs and counts the exception, and drops it. Thread-safety: the
// two ends may be used from different threads, and each end by one thread at a time.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/dispatch.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace weft::rpc {

template <class T>
class Future;
template <class T>
class SharedFuture;

// A request to the operation. cancel: end early. title: return the text that names the operation in errors
// ("worker1: market.last").
enum class WorkRequest : std::uint8_t { cancel, title };

namespace detail {

// Passes the current exception, which a continuation threw, to `exceptions`; if `exceptions` is null, to the
// loop's sink. Both may be null.
WEFT_EXPORT void continuation_threw(const Loop* loop, ExceptionSink* exceptions) noexcept;

// The stages are empty -> waiting (a continuation is set) -> done, or empty -> done. The later of the two
// calls, complete() or consume(), runs the continuation.
template <class T>
class FutureState {
 public:
  using Continuation = UniqueFunction<void(Result<T>&&)>;

  void complete(Result<T> result) {
    result_.emplace(std::move(result));
    if (stage_.exchange(Stage::done, std::memory_order_acq_rel) == Stage::waiting) {
      run(std::move(continuation_));
    }
  }
  void consume(Continuation continuation) {
    continuation_ = std::move(continuation);
    Stage expected = Stage::empty;
    if (stage_.compare_exchange_strong(expected, Stage::waiting, std::memory_order_acq_rel)) return;
    run(std::move(continuation_));
  }
  // Removes the continuation. False: the continuation has run or is running.
  bool withdraw() {
    Stage expected = Stage::waiting;
    if (!stage_.compare_exchange_strong(expected, Stage::empty, std::memory_order_acq_rel)) return false;
    continuation_ = nullptr;
    return true;
  }
  bool done() const { return stage_.load(std::memory_order_acquire) == Stage::done; }
  Result<T>& result() { return *result_; }

  std::shared_ptr<const Loop> loop;           // the thread of this loop must not block on the future
  std::shared_ptr<ExceptionSink> exceptions;  // null: the loop's sink
  // Handles requests of the consumers, on any thread, several at a time if the future is shared. Set before
  // the future is returned to its consumer. May be null.
  UniqueFunction<std::string(WorkRequest)> work;

 private:
  enum class Stage : std::uint8_t { empty, waiting, done };

  // Runs the continuation; continuations run nowhere else. Exceptions are caught here, because the caller may
  // be a connection or a timer.
  void run(Continuation continuation) {
    try {
      continuation(std::move(*result_));
    } catch (...) {
      continuation_threw(loop.get(), exceptions.get());
    }
  }

  std::atomic<Stage> stage_{Stage::empty};
  std::optional<Result<T>> result_;
  Continuation continuation_;
};

// Wakes one blocked thread.
class WEFT_EXPORT Latch {
 public:
  void open();
  void wait() { wait_for(std::chrono::nanoseconds::max()); }
  bool wait_for(std::chrono::nanoseconds timeout);  // false: the timeout has expired

 private:
  Mutex mutex_;
  Condition opened_;
  bool open_ WEFT_GUARDED_BY(mutex_) = false;
};

WEFT_EXPORT void refuse_blocking(const Loop* loop);  // throws on a thread that must not block
[[noreturn]] WEFT_EXPORT void refuse_empty();        // throws for an empty future or task
[[noreturn]] WEFT_EXPORT void timed_out(const std::string& title, std::chrono::nanoseconds timeout);

// The completion of one async_get() that can be cancelled: Complete runs once, with the result or with
// `cancelled`.
template <class T, class Complete>
class CancellableGet {
 public:
  CancellableGet(std::shared_ptr<FutureState<T>> state, Complete complete)
      : state_(std::move(state)), complete_(std::move(complete)) {}

  void complete(Result<T>&& result) {
    if (over_.exchange(true)) return;
    Complete complete =
        // Moved, so that its work guard is destroyed on return: the operation may run much longer.
        std::move(complete_);
    complete(std::move(result), cancelling_);
  }
  // Requests the end of the operation. If the operation does not end at once, its result is dropped.
  void cancel() {
    if (over_) return;
    cancelling_ = true;
    if (state_->work && !state_->done()) state_->work(WorkRequest::cancel);
    complete(Error(ErrorKind::cancelled, "async_get() was cancelled"));
  }

 private:
  const std::shared_ptr<FutureState<T>> state_;
  Complete complete_;
  std::atomic<bool> over_{false}, cancelling_{false};
};

template <class>
inline constexpr bool never = false;

}  // namespace detail

template <class T>
class Promise {
 public:
  Promise() : state_(std::make_shared<detail::FutureState<T>>()) {}
  // loop: the loop that completes the promise. On its thread, a get() that would block throws. exceptions:
  // receives the exceptions of continuations; null: the loop's sink. For a future that follows from another
  // one: pass that future's loop() and exceptions().
  explicit Promise(std::shared_ptr<const Loop> loop, std::shared_ptr<ExceptionSink> exceptions = nullptr)
      : Promise() {
    state_->loop = std::move(loop);
    state_->exceptions = std::move(exceptions);
  }
  // A promise without a loop. exceptions: Executor::exceptions().
  explicit Promise(std::shared_ptr<ExceptionSink> exceptions) : Promise(nullptr, std::move(exceptions)) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    abandon();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() { abandon(); }

  // Call once, before the promise is completed or moved to another thread.
  Future<T> future() { return Future<T>(state_); }
  template <class F>
  void on_cancel(F cancel) {
    on_request([cancel = std::move(cancel)](WorkRequest request) mutable {
      if (request == WorkRequest::cancel) cancel();
      return std::string();
    });
  }
  void on_request(UniqueFunction<std::string(WorkRequest)> work) { state_->work = std::move(work); }

  // Continuations run on the completing thread.
  void complete(Result<T> result) { std::exchange(state_, nullptr)->complete(std::move(result)); }
  void fail(std::exception_ptr error) { complete(Result<T>(std::move(error))); }
  template <class E>
  void fail(E error) {
    fail(std::make_exception_ptr(std::move(error)));
  }
  explicit operator bool() const { return state_ != nullptr; }

 private:
  void abandon() {
    if (state_ != nullptr) fail(Error(ErrorKind::aborted, "the promise was destroyed without a result"));
  }
  std::shared_ptr<detail::FutureState<T>> state_;
};

template <class T>
class [[nodiscard]] Future {
 public:
  Future() = default;
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  // valid(): whether the future is neither consumed nor moved from. ready(): whether it is completed, so that
  // get() does not block.
  bool valid() const { return state_ != nullptr; }
  bool ready() const { return held()->done(); }
  const std::shared_ptr<const Loop>& loop() const {
    return held()->loop;
  }  // the loop that completes the future; may be null
  // The sink for exceptions of continuations; null: the sink of the loop is used.
  const std::shared_ptr<ExceptionSink>& exceptions() const { return held()->exceptions; }

  // Blocks the calling thread. On a thread that an agent owns, or that runs the program's io_context for an
  // agent, a get() that would block throws ErrorKind::failed_precondition, and the future stays valid.
  T get() { return get_within(std::nullopt); }

  // Like get(), but throws deadline_exceeded after `timeout`; the error names the operation if it has a
  // title. The operation continues, and the future stays valid: wait again, or call cancel().
  T get(std::chrono::nanoseconds timeout) { return get_within(timeout); }

  // A future whose value is the result, or the error: `Result<T> result = co_await future.as_result();` does
  // not throw. cancel() of the returned future cancels the operation.
  Future<Result<T>> as_result() && {
    return then([](Result<T>&& result) { return Result<Result<T>>(std::move(result)); });
  }

  // f receives the Result<T> and must not block. It runs on the thread that completes the future, or within
  // then(), if the future is ready. then() returns a future of the value, Result or exception of f. If f
  // returns void, then() returns void, and exceptions of f are logged and dropped.
  template <class F>
  auto then(F f) {
    using Returned = std::invoke_result_t<F&, Result<T>>;
    held();
    auto state = std::exchange(state_, nullptr);
    if constexpr (std::is_void_v<Returned>) {
      state->consume([f = std::move(f)](Result<T>&& result) mutable { f(std::move(result)); });
    } else {
      using Next = typename detail::Flatten<Returned>::Type;
      Promise<Next> promise = follow<Next>(state);
      Future<Next> next = promise.future();
      state->consume([f = std::move(f), promise = std::move(promise)](Result<T>&& result) mutable {
        promise.complete(capture([&] { return f(std::move(result)); }));
      });
      return next;
    }
  }

  // Like then(f), but f runs in a job of the executor, where it may block if the executor permits that. The
  // executor must outlive the operation. Its sink receives what an f that returns void throws.
  template <class F>
  auto then(Executor& executor, F f) {
    using Returned = std::invoke_result_t<F&, Result<T>>;
    if constexpr (std::is_void_v<Returned>) {
      then([&executor, f = std::move(f)](Result<T>&& result) mutable {
        executor.post([f = std::move(f), result = std::move(result), sink = executor.exceptions()]() mutable {
          try {
            f(std::move(result));
          } catch (...) {
            detail::continuation_threw(nullptr, sink.get());
          }
        });
      });
    } else {
      using Next = typename detail::Flatten<Returned>::Type;
      Promise<Next> promise = follow<Next>(held());
      Future<Next> next = promise.future();
      then([&executor, f = std::move(f), promise = std::move(promise)](Result<T>&& result) mutable {
        executor.post([f = std::move(f), promise = std::move(promise), result = std::move(result)]() mutable {
          promise.complete(capture([&] { return f(std::move(result)); }));
        });
      });
      return next;
    }
  }

  // Completes the token with (std::exception_ptr[, T]) on the token's executor. T must have a default
  // constructor, because an error is passed with a default value. If the token's cancellation slot signals
  // terminal or partial cancellation, the end of the operation is requested, as by cancel(), and the token is
  // completed at once: with the operation's error if it is available, otherwise with ErrorKind::cancelled. A
  // total cancellation is ignored, because it promises that the operation had no effects, and a call may have
  // had effects.
  template <class Token>
  auto async_get(Token&& token) {
    if constexpr (std::is_void_v<T>) {
      return asio::async_initiate<Token, void(std::exception_ptr)>(Initiate{}, token, std::move(*this));
    } else {
      return asio::async_initiate<Token, void(std::exception_ptr, T)>(Initiate{}, token, std::move(*this));
    }
  }

  // Never called. Asio's coroutines look for this operator in a value that they await, and the static_assert
  // then explains the error. The return type is deduced, so that the compiler reports this message first.
  template <class Frame>
  auto operator()(Frame*) const {
    static_assert(detail::never<Frame>,
                  "weft: in an asio::awaitable, write co_await future.async_get(asio::use_awaitable); only a "
                  "weft::rpc::Task awaits a Future itself");
    return nullptr;
  }

  // Requests an early end; the future still completes exactly once. May be called on any thread, also after
  // completion.
  void cancel() {
    if (state_ != nullptr && state_->work && !state_->done()) state_->work(WorkRequest::cancel);
  }

  // Returns a future that is already completed.
  static Future made(Result<T> result) {
    Promise<T> promise;
    Future future = promise.future();
    promise.complete(std::move(result));
    return future;
  }

 private:
  friend class Promise<T>;
  friend class SharedFuture<T>;
  explicit Future(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}

  const std::shared_ptr<detail::FutureState<T>>& held() const {
    if (state_ == nullptr) detail::refuse_empty();
    return state_;
  }

  // Blocks until the result is available. nullopt: without a timeout.
  T get_within(std::optional<std::chrono::nanoseconds> timeout) {
    if (held()->done()) return std::move(std::exchange(state_, nullptr)->result()).get();
    detail::refuse_blocking(state_->loop.get());
    detail::Latch done;
    std::optional<Result<T>> result;
    state_->consume([&](Result<T>&& arrived) {
      result.emplace(std::move(arrived));
      done.open();
    });
    if (timeout && !done.wait_for(*timeout) && state_->withdraw())
      detail::timed_out(state_->work ? state_->work(WorkRequest::title) : std::string(), *timeout);
    done.wait();  // after a timeout: the result is arriving
    state_ = nullptr;
    return std::move(*result).get();
  }

  // The promise of a future that follows from this result.
  template <class Next>
  static Promise<Next> follow(const std::shared_ptr<detail::FutureState<T>>& state) {
    Promise<Next> promise(state->loop, state->exceptions);
    if (state->work) promise.on_request([state](WorkRequest request) { return state->work(request); });
    return promise;
  }

  // Runs the handler on its executor. later: posts the handler instead of dispatching it, because a
  // cancellation signal is being emitted.
  template <class Handler, class Work>
  struct Complete {
    Handler handler;
    Work work;
    void operator()(Result<T>&& result, bool later = false) {
      auto executor = work.get_executor();
      auto run = [handler = std::move(handler), result = std::move(result)]() mutable {
        std::exception_ptr error = result.ok() ? nullptr : result.error();
        if constexpr (std::is_void_v<T>) {
          std::move(handler)(error);
        } else {
          std::move(handler)(error, result.ok() ? std::move(result).get() : T{});
        }
      };
      later ? asio::post(executor, std::move(run)) : asio::dispatch(executor, std::move(run));
    }
  };

  struct Initiate {
    template <class Handler>
    void operator()(Handler handler, Future future) const {
      auto slot = asio::get_associated_cancellation_slot(handler);
      auto work = asio::make_work_guard(asio::get_associated_executor(handler));
      using OnEnd = Complete<Handler, decltype(work)>;
      OnEnd complete{std::move(handler), std::move(work)};
      if (!slot.is_connected())
        return std::move(future).then(
            [complete = std::move(complete)](Result<T>&& result) mutable { complete(std::move(result)); });
      auto get = std::make_shared<detail::CancellableGet<T, OnEnd>>(future.state_, std::move(complete));
      slot.assign([weak = std::weak_ptr(get)](asio::cancellation_type type) {
        const auto heeded = asio::cancellation_type::terminal | asio::cancellation_type::partial;
        if ((type & heeded) == asio::cancellation_type::none) return;
        if (const auto current = weak.lock()) current->cancel();
      });
      std::move(future).then([get](Result<T>&& result) { get->complete(std::move(result)); });
    }
  };

  std::shared_ptr<detail::FutureState<T>> state_;
};

}  // namespace weft::rpc
