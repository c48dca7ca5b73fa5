// SharedFuture<T>: the result of one operation, for several consumers.
//
// Each consumer takes a Future of a copy of the value with future(), so T must be copyable. A consumer's
// cancel() has no effect; cancel() of the shared future requests the end of the operation for all.
// Thread-safety: copies may be used from different threads, and each function from any thread.
#pragma once

#include <weft/rpc/core/future.h>

#include <vector>

namespace weft::rpc {

template <class T>
class SharedFuture {
 public:
  SharedFuture() = default;
  explicit SharedFuture(Future<T> future) : shared_(std::make_shared<Shared>(future.held())) {
    std::exchange(future.state_, nullptr)->consume([shared = shared_](Result<T>&& result) {
      shared->complete(std::move(result));
    });
  }

  // As the functions of Future.
  bool valid() const { return shared_ != nullptr; }
  bool ready() const { return held().ready(); }
  // The copies of a value share what a copy of T shares: a copy of an at::Tensor has the same elements.
  Future<T> future() const { return held().add(); }
  // As Future::get(), but returns a copy of the value.
  T get() const { return held().wait(std::nullopt); }
  T get(std::chrono::nanoseconds timeout) const { return held().wait(timeout); }
  void cancel() const {
    const auto& operation = held().operation;
    if (operation->work && !operation->done()) operation->work(WorkRequest::cancel);
  }

 private:
  struct Shared {
    explicit Shared(std::shared_ptr<detail::FutureState<T>> of) : operation(std::move(of)) {}

    const std::shared_ptr<detail::FutureState<T>> operation;
    Mutex mutex;
    Condition completed;
    std::optional<Result<T>> result WEFT_GUARDED_BY(mutex);
    std::vector<Promise<T>> consumers WEFT_GUARDED_BY(mutex);

    void complete(Result<T>&& arrived) {
      std::vector<Promise<T>> waiting;
      {
        MutexLock lock(mutex);
        result = arrived;
        waiting.swap(consumers);
        completed.notify_all();
      }
      for (Promise<T>& consumer : waiting) consumer.complete(arrived);
    }
    bool ready() {
      MutexLock lock(mutex);
      return result.has_value();
    }
    T wait(std::optional<std::chrono::nanoseconds> timeout) {
      MutexLock lock(mutex);
      const auto is_completed = [this]() WEFT_REQUIRES(mutex) { return result.has_value(); };
      if (!is_completed()) {
        detail::refuse_blocking(operation->loop.get());
        if (!timeout) {
          completed.wait(lock, is_completed);
        } else if (!completed.wait_until(lock, later(Clock::now(), *timeout), is_completed)) {
          detail::timed_out(operation->work ? operation->work(WorkRequest::title) : std::string(), *timeout);
        }
      }
      return Result<T>(*result).get();
    }
    Future<T> add() {
      Promise<T> promise(operation->loop, operation->exceptions);
      promise.on_request([operation = operation](WorkRequest request) {
        const bool forwards = request == WorkRequest::title && operation->work;
        return forwards ? operation->work(request) : std::string();
      });
      Future<T> future = promise.future();
      std::optional<Result<T>> available;
      {
        MutexLock lock(mutex);
        available = result;
        if (!available) consumers.push_back(std::move(promise));
      }
      if (available) promise.complete(*std::move(available));
      return future;
    }
  };

  Shared& held() const {
    if (shared_ == nullptr) detail::refuse_empty();
    return *shared_;
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace weft::rpc
