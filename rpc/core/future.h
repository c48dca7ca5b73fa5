// Future<T>: the one result of work that is already under way; Promise<T>: the other end.
//
// A future has one consumer, who chooses one way: get() on a thread of the program, co_await in a Task,
// then(f), or async_get(token) with any Asio completion token. Destroying a future detaches: the work goes
// on. cancel() asks the work to end early; it still completes exactly once. A promise that is destroyed
// unfulfilled completes with ErrorKind::aborted. Thread-safety: the two ends may be used from different
// threads; one end by one thread at a time.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/dispatch.hpp>
#include <asio/error_code.hpp>
#include <asio/executor_work_guard.hpp>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

namespace weft::rpc {

template <class T>
class Future;

namespace detail {

// Empty -> waiting (a continuation is set) -> done, or empty -> done: whoever comes second runs the
// continuation.
template <class T>
class FutureState {
 public:
  using Continuation = UniqueFunction<void(Result<T>&&)>;

  void complete(Result<T> result) {
    result_.emplace(std::move(result));
    if (stage_.exchange(Stage::done, std::memory_order_acq_rel) == Stage::waiting) {
      Continuation continuation = std::move(continuation_);
      continuation(std::move(*result_));
    }
  }
  void consume(Continuation continuation) {
    continuation_ = std::move(continuation);
    Stage expected = Stage::empty;
    if (stage_.compare_exchange_strong(expected, Stage::waiting, std::memory_order_acq_rel)) return;
    Continuation now = std::move(continuation_);
    now(std::move(*result_));
  }
  bool done() const { return stage_.load(std::memory_order_acquire) == Stage::done; }
  Result<T>& result() { return *result_; }

  std::shared_ptr<const Loop> loop;  // the loop whose thread must not wait for this
  Job cancel;                        // set before the future is handed out; any thread

 private:
  enum class Stage : std::uint8_t { empty, waiting, done };
  std::atomic<Stage> stage_{Stage::empty};
  std::optional<Result<T>> result_;
  Continuation continuation_;
};

template <class T>
struct Flatten {
  using Type = T;
};
template <class T>
struct Flatten<Result<T>> {
  using Type = T;
};

// Wakes one blocked thread.
class WEFT_EXPORT Latch {
 public:
  void open();
  void wait();

 private:
  std::mutex mutex_;  // guards open_
  std::condition_variable opened_;
  bool open_ = false;
};

WEFT_EXPORT void refuse_blocking(const Loop* loop);  // throws on a thread that must not wait

}  // namespace detail

template <class T>
class Promise {
 public:
  Promise() : state_(std::make_shared<detail::FutureState<T>>()) {}
  // With the loop that will complete it, on which get() is an error.
  explicit Promise(std::shared_ptr<const Loop> loop) : Promise() { state_->loop = std::move(loop); }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    abandon();
    state_ = std::move(other.state_);
    return *this;
  }
  ~Promise() { abandon(); }

  // Once, before the promise is completed or moved to another thread.
  Future<T> future() { return Future<T>(state_); }
  void on_cancel(Job cancel) { state_->cancel = std::move(cancel); }

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
    if (state_ != nullptr) fail(Error(ErrorKind::aborted, "the work was abandoned without a result"));
  }
  std::shared_ptr<detail::FutureState<T>> state_;
};

template <class T>
class [[nodiscard]] Future {
 public:
  Future() = default;
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_->done(); }
  const std::shared_ptr<const Loop>& loop() const {
    return state_->loop;
  }  // where it is completed; may be null

  // Waits on the calling thread. On a thread that an agent owns, or that runs the program's io_context under
  // an agent, a wait that would block is ErrorKind::failed_precondition, and the future stays as it was.
  T get() {
    if (!state_->done()) detail::refuse_blocking(state_->loop.get());
    auto state = std::exchange(state_, nullptr);
    if (!state->done()) {
      struct Waiter {
        detail::Latch latch;
        std::optional<Result<T>> result;
      } waiter;
      state->consume([&waiter](Result<T>&& result) {
        waiter.result.emplace(std::move(result));
        waiter.latch.open();
      });
      waiter.latch.wait();
      return std::move(*waiter.result).get();
    }
    return std::move(state->result()).get();
  }

  // f gets the Result<T>, inline on the completing thread (or here, when done already), and must neither
  // block nor throw where it returns nothing. What f returns (a value, or a Result) becomes a future; an f
  // that returns nothing ends the chain.
  template <class F>
  auto then(F f) {
    using Returned = std::invoke_result_t<F&, Result<T>>;
    auto state = std::exchange(state_, nullptr);
    if constexpr (std::is_void_v<Returned>) {
      state->consume([f = std::move(f)](Result<T>&& result) mutable { f(std::move(result)); });
    } else {
      using Next = typename detail::Flatten<Returned>::Type;
      Promise<Next> promise(state->loop);
      if (state->cancel) promise.on_cancel([state] { state->cancel(); });
      Future<Next> next = promise.future();
      state->consume([f = std::move(f), promise = std::move(promise)](Result<T>&& result) mutable {
        promise.complete([&]() -> Result<Next> {
          try {
            return f(std::move(result));
          } catch (...) {
            return std::current_exception();
          }
        }());
      });
      return next;
    }
  }

  // Completes the token with (std::exception_ptr[, T]) on the token's executor. A T has a default
  // constructor: it stands beside an error.
  template <class Token>
  auto async_get(Token&& token) {
    if constexpr (std::is_void_v<T>) {
      return asio::async_initiate<Token, void(std::exception_ptr)>(Initiate{}, token, std::move(*this));
    } else {
      return asio::async_initiate<Token, void(std::exception_ptr, T)>(Initiate{}, token, std::move(*this));
    }
  }

  // A request; the future still completes exactly once. Safe on any thread, also after completion.
  void cancel() {
    if (state_ != nullptr && state_->cancel && !state_->done()) state_->cancel();
  }

  static Future made(Result<T> result) {
    Promise<T> promise;
    Future future = promise.future();
    promise.complete(std::move(result));
    return future;
  }

 private:
  friend class Promise<T>;
  explicit Future(std::shared_ptr<detail::FutureState<T>> state) : state_(std::move(state)) {}

  struct Initiate {
    template <class Handler>
    void operator()(Handler handler, Future future) const {
      auto work = asio::make_work_guard(asio::get_associated_executor(handler));
      std::move(future).then(
          [handler = std::move(handler), work = std::move(work)](Result<T>&& result) mutable {
            auto executor = work.get_executor();
            asio::dispatch(executor, [handler = std::move(handler), result = std::move(result)]() mutable {
              std::exception_ptr error = result.ok() ? nullptr : result.error();
              if constexpr (std::is_void_v<T>) {
                std::move(handler)(error);
              } else {
                std::move(handler)(error, result.ok() ? std::move(result).get() : T{});
              }
            });
          });
    }
  };

  std::shared_ptr<detail::FutureState<T>> state_;
};

}  // namespace weft::rpc
