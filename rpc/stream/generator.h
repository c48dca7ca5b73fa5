// GeneratorCore and GeneratorSource<T>: a coroutine that makes a stream's items with co_yield.
//
// The coroutine runs only on the executor of its StreamHome, and only when an item is requested. It may await
// futures and tasks. When the stream is closed, the coroutine is destroyed on that executor. If the coroutine
// awaits a task, it is destroyed after the task has ended, otherwise as soon as it is suspended. A coroutine
// that never ran is destroyed by the thread that closes the stream. Thread-safety: as StreamSource.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/stream/source.h>

#include <coroutine>

namespace weft::rpc {

template <class T>
class Stream;

namespace detail {

class WEFT_EXPORT GeneratorCore : public std::enable_shared_from_this<GeneratorCore> {
 public:
  virtual ~GeneratorCore();

  enum class State : std::uint8_t {
    idle,      // the coroutine has not started, or is suspended at a co_yield
    queued,    // its next step is posted to the executor
    running,   // it runs on the executor
    awaiting,  // it awaits a future
    busy,      // it awaits a task, which may refer to the coroutine's variables
    over,      // the coroutine is destroyed, or the thread that changed the state will destroy it
  };

  // For the awaiters, while the coroutine suspends. Returns the number that wake() needs to resume the
  // coroutine, or 0 if the stream was closed: then do not wait. After the call, the coroutine may have been
  // destroyed.
  std::uint64_t wait(State kind);
  void yielded() { suspend(Step::yielded); }
  void ended(std::exception_ptr error);
  void wake(std::uint64_t number);  // any thread
  const StreamHome& home() const { return home_; }

 protected:
  explicit GeneratorCore(std::coroutine_handle<> coroutine) : coroutine_(coroutine) {}

  void bind_home(const StreamHome& home);
  void ask() WEFT_EXCLUDES(mutex_);  // requests one more item
  void close_coroutine();
  // Whether next() returns the end or an error at once.
  bool over() const WEFT_REQUIRES(mutex_) { return state_ == State::over || closed_; }
  std::exception_ptr why_over() const WEFT_REQUIRES(mutex_);  // null: the stream ended without an error

  virtual void complete_item() = 0;                         // delivers the yielded item
  virtual void complete_end(std::exception_ptr error) = 0;  // null: the end

  mutable Mutex mutex_;

 private:
  enum class Step : std::uint8_t { waits, yielded, ended, dead };
  class Job;

  void suspend(Step step);
  void run(std::uint64_t number);
  void drop(std::uint64_t number);  // the executor has ended
  void destroy(bool here);          // called once, in state `over`; here: true on the executor
  ContextSwitch* context() const { return home_.call != nullptr ? home_.call->context() : nullptr; }

  State state_ WEFT_GUARDED_BY(mutex_) = State::idle;
  bool began_ WEFT_GUARDED_BY(mutex_) = false;
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  // run() is delivering an item, and checks the state afterwards.
  bool delivering_ WEFT_GUARDED_BY(mutex_) = false;
  std::uint64_t number_ WEFT_GUARDED_BY(mutex_) = 0;  // counts suspensions and resumptions
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);  // the error with which the coroutine ended
  // These members have no annotation: mutex_ guards home_ until the coroutine has started, and state_
  // determines which thread uses coroutine_ and step_.
  std::coroutine_handle<> coroutine_;
  StreamHome home_;       // constant once the coroutine has started
  Step* step_ = nullptr;  // a variable of the run() that has resumed the coroutine
};

template <class T>
class GeneratorSource;

// Awaits a Future, or a Task, which it starts on the executor of the generator.
template <class U, class Awaited>
struct GeneratorAwaiter {
  static constexpr bool is_future = std::is_same_v<Awaited, Future<U>>;
  GeneratorCore* core;
  Awaited awaited;
  std::shared_ptr<std::optional<Result<U>>> result{};

  bool await_ready() const {
    if constexpr (is_future) return awaited.ready();
    return false;
  }
  void await_suspend(std::coroutine_handle<>) {
    auto self = core->shared_from_this();
    auto begun = std::move(awaited);
    auto slot = result = std::make_shared<std::optional<Result<U>>>();
    const auto number = self->wait(is_future ? GeneratorCore::State::awaiting : GeneratorCore::State::busy);
    if (number == 0) return;
    const auto then = [self, slot, number](Result<U>&& value) {
      slot->emplace(std::move(value));
      self->wake(number);
    };
    const StreamHome& home = self->home();
    if constexpr (is_future) {
      std::move(begun).then(then);
    } else {
      std::move(begun)
          .start(*home.executor, home.call != nullptr ? home.call->context() : nullptr)
          .then(then);
    }
  }
  U await_resume() {
    if constexpr (is_future)
      if (result == nullptr) return awaited.get();
    return std::move(**result).get();
  }
};

template <class T>
class GeneratorPromise {
 public:
  Stream<T> get_return_object() {
    return Stream<T>(
        std::make_shared<GeneratorSource<T>>(std::coroutine_handle<GeneratorPromise>::from_promise(*this)));
  }
  std::suspend_always initial_suspend() noexcept { return {}; }

  // A suspension at a co_yield or, with `ends`, at the end.
  struct Stop {
    GeneratorCore* core;
    bool ends = false;
    std::exception_ptr error = {};
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<>) const noexcept {
      ends ? core->ended(error) : core->yielded();
    }
    void await_resume() const noexcept {}
  };
  Stop yield_value(T item) {
    source_->item_.emplace(std::move(item));
    return {source_};
  }
  Stop final_suspend() noexcept { return {source_, true, error_}; }
  void return_void() {}
  void unhandled_exception() { error_ = std::current_exception(); }

  template <class U>
  GeneratorAwaiter<U, Future<U>> await_transform(Future<U> future) {
    return {source_, std::move(future)};
  }
  template <class U>
  GeneratorAwaiter<U, Task<U>> await_transform(Task<U> task) {
    return {source_, std::move(task)};
  }

 private:
  friend class GeneratorSource<T>;
  GeneratorSource<T>* source_ = nullptr;  // the source exists as long as the coroutine
  std::exception_ptr error_;
};

template <class T>
class GeneratorSource final : public StreamSource<T>, public GeneratorCore {
 public:
  using Item = std::optional<T>;
  explicit GeneratorSource(std::coroutine_handle<GeneratorPromise<T>> coroutine) : GeneratorCore(coroutine) {
    coroutine.promise().source_ = this;
  }

  Future<Item> next() override {
    Future<Item> future;
    {
      MutexLock lock(mutex_);
      if (over()) return Future<Item>::made(stream_end<Item>(why_over()));
      if (pending_next_) return refused_next<Item>();
      if (home().executor == nullptr)
        return failed_stream<Item>(
            ErrorKind::failed_precondition,
            "a generator that is read on its own agent needs an executor: call Stream::on()");
      pending_next_.emplace();
      future = pending_next_->future();
    }
    ask();
    return future;
  }
  void close() override { close_coroutine(); }
  void bind(const StreamHome& home) override { bind_home(home); }

 private:
  friend class GeneratorPromise<T>;
  std::optional<Promise<Item>> take() {
    MutexLock lock(mutex_);
    return std::exchange(pending_next_, std::nullopt);
  }
  void complete_item() override {
    Item item = std::move(item_);
    item_.reset();
    if (auto pending = take()) pending->complete(std::move(item));
  }
  void complete_end(std::exception_ptr error) override {
    if (auto pending = take()) pending->complete(stream_end<Item>(error));
  }

  std::optional<Promise<Item>> pending_next_ WEFT_GUARDED_BY(mutex_);
  Item item_;  // used on the executor
};

}  // namespace detail
}  // namespace weft::rpc
