// Task<T>: weft's coroutine. It is lazy: it begins when another task awaits it, or when it is started on an
// executor.
//
// A task has one executor, on which it was started, and resumes only there. The tasks that it awaits use the
// same executor. A task may await Future<U> and Task<U>. A context (ContextSwitch) given at the start is
// entered whenever the task runs on a thread, and left whenever it suspends. If the executor has ended and
// drops the job that resumes the task, the task is destroyed. Arguments of a coroutine that returns a Task
// must be values, or must outlive the task. An empty task, which was used or moved from, throws
// ErrorKind::failed_precondition when it is used. Thread-safety: a Task object is used by one thread at a
// time; its body runs on one thread at a time.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/future.h>

#include <coroutine>

namespace weft::rpc {

template <class T = void>
class Task;

namespace detail {

// The common state of a started task and the tasks that it awaits; a member of the started task's promise.
struct TaskHome {
  Executor* executor = nullptr;
  ContextSwitch* context = nullptr;
  std::coroutine_handle<> started;
  std::coroutine_handle<>* next =
      nullptr;  // the coroutine that run() resumes next; a variable on the stack of run()

  // Runs the coroutine, and the coroutines to which it passes control, until one of them suspends or the
  // started task ends. This function uses a loop and not symmetric transfer, which compilers turn into a tail
  // call only with -O2: without -O2, a task that awaits a million tasks would overflow the stack. Once a
  // coroutine has suspended, another thread may use or destroy this object.
  void run(std::coroutine_handle<> handle) {
    std::coroutine_handle<> turn = handle;
    next = &turn;
    while (turn) std::exchange(turn, nullptr).resume();
  }
};

// The job that resumes a suspended task. If it is dropped, it destroys the whole task.
class TaskResumption {
 public:
  TaskResumption(TaskHome* home, std::coroutine_handle<> handle) : home_(home), handle_(handle) {}
  TaskResumption(TaskResumption&& other) noexcept
      : home_(std::exchange(other.home_, nullptr)), handle_(other.handle_) {}
  TaskResumption& operator=(TaskResumption&&) = delete;
  ~TaskResumption() {
    if (home_ != nullptr) home_->started.destroy();
  }
  void operator()() {
    TaskHome* home = std::exchange(home_, nullptr);
    if (home->context != nullptr) home->context->enter();
    home->run(handle_);
  }

 private:
  TaskHome* home_;
  std::coroutine_handle<> handle_;
};

template <class T>
struct FutureAwaiter {
  Future<T> future;
  TaskHome* home;
  std::optional<Result<T>> result{};

  bool await_ready() const { return future.ready(); }
  void await_suspend(std::coroutine_handle<> handle) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the promise of the task sets `home`.
    if (home->context != nullptr) home->context->leave();
    // Moved, because this awaiter may be destroyed before then() returns.
    Future<T> waited = std::move(future);
    waited.then([this, handle](Result<T>&& value) {
      result.emplace(std::move(value));
      home->executor->post(TaskResumption(home, handle));
    });
  }
  T await_resume() {
    if (!result) return future.get();
    return std::move(*result).get();
  }
};

class TaskPromiseBase {
 public:
  std::suspend_always initial_suspend() noexcept { return {}; }

  template <class U>
  FutureAwaiter<U> await_transform(Future<U> future) {
    return {std::move(future), home};
  }
  template <class U>
  auto await_transform(Task<U> task) {
    return std::move(task).awaiter(home);
  }

  TaskHome own_home;               // used if this task was started
  TaskHome* home = nullptr;        // the home of this task, or of the task that awaits it
  std::coroutine_handle<> parent;  // the task that awaits this task; resumed at the end
  Callback ended;                  // called at the end, if an executor started this task
  std::exception_ptr error;

  void unhandled_exception() { error = std::current_exception(); }

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> handle) noexcept {
      TaskPromiseBase& promise = handle.promise();
      if (promise.parent) {
        *promise.home->next = promise.parent;
        return;
      }
      if (promise.home->context != nullptr) promise.home->context->leave();
      Callback ended = std::move(promise.ended);
      ended();  // destroys the coroutine
    }
    void await_resume() noexcept {}
  };
  FinalAwaiter final_suspend() noexcept { return {}; }
};

template <class T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object() { return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this)); }
  template <class U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  Result<T> take() { return error ? Result<T>(error) : Result<T>(std::move(*value_)); }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() {}
  Result<void> take() { return error ? Result<void>(error) : Result<void>(); }
};

}  // namespace detail

template <class T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::TaskPromise<T>;
  // The handle of the coroutine.
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (handle_) handle_.destroy();
    handle_ = std::exchange(other.handle_, nullptr);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool valid() const { return handle_ != nullptr; }  // false: used or moved from

  // Starts the task on the calling thread, which must belong to the executor. `done` receives the result on
  // the executor.
  template <class Done>
  void start_here(Executor& executor, ContextSwitch* context, Done done) && {
    if (!valid()) detail::refuse_empty();
    Handle handle = std::exchange(handle_, nullptr);
    promise_type& promise = handle.promise();
    promise.own_home = {&executor, context, handle};
    promise.home = &promise.own_home;
    promise.ended = [handle, done = std::move(done)]() mutable {
      Result<T> result = handle.promise().take();
      Done finish = std::move(done);
      handle.destroy();
      finish(std::move(result));
    };
    if (context != nullptr) context->enter();
    promise.home->run(handle);
  }

  // Starts the task on the executor, and returns a future. Exceptions of the future's continuation go to the
  // executor's sink.
  Future<T> start(Executor& executor, ContextSwitch* context = nullptr) && {
    if (!valid()) detail::refuse_empty();
    Promise<T> promise(executor.exceptions());
    Future<T> future = promise.future();
    executor.post([task = std::move(*this), &executor, context, promise = std::move(promise)]() mutable {
      std::move(task).start_here(executor, context,
                                 [promise = std::move(promise)](Result<T>&& result) mutable {
                                   promise.complete(std::move(result));
                                 });
    });
    return future;
  }

 private:
  friend promise_type;
  friend detail::TaskPromiseBase;
  explicit Task(Handle handle) : handle_(handle) {}

  struct Awaiter {
    Handle handle;
    explicit Awaiter(Handle h) : handle(h) {}
    Awaiter(Awaiter&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
    ~Awaiter() {
      if (handle) handle.destroy();
    }
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> parent) {
      handle.promise().parent = parent;
      *handle.promise().home->next = handle;
    }
    T await_resume() { return handle.promise().take().get(); }
  };
  Awaiter awaiter(detail::TaskHome* home) && {
    if (!valid()) detail::refuse_empty();
    handle_.promise().home = home;
    return Awaiter{std::exchange(handle_, nullptr)};
  }

  Handle handle_;
};

inline Task<void> detail::TaskPromise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

}  // namespace weft::rpc
