#include <weft/rpc/store/file_store.h>

#include <weft/rpc/store/store_log.h>
#include <weft/rpc/store/store_table.h>

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace weft::rpc {
namespace {

Error closed_error() { return Error(ErrorKind::shut_down, "the store has closed"); }

}  // namespace

// What the store and its thread share. The log belongs to the thread alone.
struct FileStore::State {
  // Run on the thread; with an error where the store closes first.
  using Task = UniqueFunction<void(State&, const Error*)>;

  State(const std::string& path, FileStoreOptions o) : log(path), options(o) {}

  StoreLog log;
  const FileStoreOptions options;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  StoreTable table;
  std::deque<Task> tasks;
  bool closed = false;
  std::thread thread;

  static void run(const std::shared_ptr<State>& self);
  void poll();
  void fail_late();
  // The log's lock for a scope, and what others have written meanwhile.
  template <class F>
  void locked(bool exclusive, F&& work);
  void apply(StoreLog::Record record, StoreTable::Jobs& jobs);
  void change(StoreLog::Record record, StoreTable::Jobs& jobs);
  void lock_log(bool exclusive);
  void post(Task task);

  static detail::DropWait dropper(const std::shared_ptr<State>& state) {
    return [weak = std::weak_ptr(state)](const std::shared_ptr<StoreWait>& wait) {
      const auto store = weak.lock();
      if (store == nullptr) return;
      std::lock_guard lock(store->mutex);
      store->table.drop(wait);
    };
  }
};

void FileStore::State::run(const std::shared_ptr<State>& self) {
  OwnedThread mark;
  State& state = *self;
  for (;;) {
    std::deque<Task> tasks;
    {
      std::unique_lock lock(state.mutex);
      const auto due = [&] { return state.closed || !state.tasks.empty(); };
      if (state.table.waits() == 0) {
        // A wait comes here as a task, so that nobody can begin to wait unnoticed.
        state.changed.wait(lock, due);
      } else {
        state.changed.wait_for(lock, state.options.interval, due);
      }
      if (state.closed) return;
      tasks.swap(state.tasks);
    }
    if (tasks.empty()) state.poll();
    for (Task& task : tasks) task(state, nullptr);
    state.fail_late();
  }
}

void FileStore::State::poll() {
  try {
    locked(false, [](StoreTable::Jobs&) {});
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unavailable) return;  // busy; the next time
    std::vector<std::shared_ptr<StoreWait>> waits;
    {
      std::lock_guard lock(mutex);
      waits = table.take_all();
    }
    for (const auto& wait : waits) wait->fail(error);
  }
}

void FileStore::State::fail_late() {
  std::vector<std::shared_ptr<StoreWait>> late;
  {
    std::lock_guard lock(mutex);
    late = table.take_late(Clock::now());
  }
  for (const auto& wait : late) wait->fail(Error(ErrorKind::deadline_exceeded, "the deadline has passed"));
}

void FileStore::State::lock_log(bool exclusive) {
  // Never a blocking lock: whoever holds it may be stopped, and close() must end this thread all the same.
  const auto until = Clock::now() + options.patience;
  while (!log.try_lock(exclusive)) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds{1}, [&] { return closed; });
    if (closed) throw closed_error();
    if (Clock::now() >= until)
      throw Error(ErrorKind::unavailable, "the store " + log.path() +
                                              " has been locked by another process for " +
                                              std::to_string(options.patience.count()) + " ms");
  }
}

template <class F>
void FileStore::State::locked(bool exclusive, F&& work) {
  StoreTable::Jobs jobs;
  const auto inside = [&] {
    lock_log(exclusive);
    struct Unlock {
      StoreLog& log;
      ~Unlock() { log.unlock(); }
    } unlock{log};
    log.read([&](StoreLog::Record record) { apply(std::move(record), jobs); });
    work(jobs);
  };
  const Result<void> done = capture(inside);
  for (Job& job : jobs) job();  // also where the reading ended early: these have been taken off the table
  if (!done.ok()) std::rethrow_exception(done.error());
}

void FileStore::State::apply(StoreLog::Record record, StoreTable::Jobs& jobs) {
  std::lock_guard lock(mutex);
  if (record.value) {
    table.set(record.key, std::move(*record.value), jobs);
  } else {
    table.remove(record.key, jobs);
  }
}

void FileStore::State::change(StoreLog::Record record, StoreTable::Jobs& jobs) {
  log.append(record);
  apply(std::move(record), jobs);
}

void FileStore::State::post(Task task) {
  {
    std::lock_guard lock(mutex);
    if (!closed) {
      tasks.push_back(std::move(task));
      changed.notify_all();
      return;
    }
  }
  const Error error = closed_error();
  task(*this, &error);
}

FileStore::FileStore(const std::string& path, FileStoreOptions options)
    : state_(std::make_shared<State>(path, options)) {
  state_->thread = std::thread([state = state_] { State::run(state); });
}

FileStore::~FileStore() { close(); }

std::string FileStore::path_of(std::string_view url) {
  constexpr std::string_view scheme = "file://";
  if (!url.starts_with("file:///") || url.size() == scheme.size() + 1)
    throw Error(ErrorKind::invalid_argument, "'" + std::string(url) + "' is no file store: file:///path");
  return std::string(url.substr(scheme.size()));
}

void FileStore::close() {
  std::deque<State::Task> tasks;
  std::vector<std::shared_ptr<StoreWait>> waits;
  std::thread thread;
  {
    std::lock_guard lock(state_->mutex);
    state_->closed = true;
    tasks.swap(state_->tasks);
    thread.swap(state_->thread);
    state_->changed.notify_all();
  }
  if (thread.joinable()) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // closed by what a future of it was chained to: it ends when that returns
    } else {
      thread.join();
    }
  }
  {
    std::lock_guard lock(state_->mutex);
    waits = state_->table.take_all();
  }
  const Error error = closed_error();
  for (auto& task : tasks) task(*state_, &error);
  for (const auto& wait : waits) wait->fail(error);
}

void FileStore::discard() noexcept { ::unlink(state_->log.path().c_str()); }

template <class T, class F>
Future<T> FileStore::submit(bool writes, F operation) {
  Promise<T> promise;
  auto future = promise.future();
  state_->post([writes, operation = std::move(operation), promise = std::move(promise)](
                   State& state, const Error* closed) mutable {
    if (closed != nullptr) return promise.fail(*closed);
    std::optional<Result<T>> result;
    try {
      state.locked(writes,
                   [&](StoreTable::Jobs& jobs) { result = capture([&] { return operation(state, jobs); }); });
    } catch (...) {
      result = Result<T>(std::current_exception());
    }
    promise.complete(std::move(*result));
  });
  return future;
}

template <class Waiting>
auto FileStore::later(Waiting waiting) {
  state_->post([wait = std::move(waiting.wait)](State& state, const Error* closed) {
    if (closed != nullptr) return wait->fail(*closed);
    try {
      state.locked(false, [](StoreTable::Jobs&) {});
    } catch (const Error& error) {
      return wait->fail(error);
    }
    StoreTable::Jobs jobs;
    {
      std::lock_guard lock(state.mutex);
      if (state.closed) return wait->fail(closed_error());
      state.table.wait(wait, jobs);
    }
    for (Job& job : jobs) job();
  });
  return std::move(waiting.future);
}

Future<void> FileStore::set(std::string key, std::string value) {
  return submit<void>(true, [key = std::move(key), value = std::move(value)](
                                State& state, StoreTable::Jobs& jobs) { state.change({key, value}, jobs); });
}

Future<std::string> FileStore::get(std::string key, CallOptions options) {
  return later(detail::wait_for_value(std::move(key), options, State::dropper(state_), nullptr));
}

Future<std::optional<std::string>> FileStore::try_get(std::string key) {
  return submit<std::optional<std::string>>(false, [key = std::move(key)](State& state, StoreTable::Jobs&) {
    std::lock_guard lock(state.mutex);
    return state.table.copy(key);
  });
}

Future<std::int64_t> FileStore::add(std::string key, std::int64_t delta) {
  return submit<std::int64_t>(true, [key = std::move(key), delta](State& state, StoreTable::Jobs& jobs) {
    std::unique_lock lock(state.mutex);
    const std::int64_t sum = state.table.sum(key, delta);
    lock.unlock();
    state.change({key, std::to_string(sum)}, jobs);
    return sum;
  });
}

Future<StoreExchange> FileStore::compare_set(std::string key, std::optional<std::string> expected,
                                             std::string desired) {
  return submit<StoreExchange>(true, [key = std::move(key), expected = std::move(expected),
                                      desired = std::move(desired)](State& state, StoreTable::Jobs& jobs) {
    std::unique_lock lock(state.mutex);
    StoreExchange exchange{false, state.table.copy(key)};
    lock.unlock();
    if (exchange.actual != expected) return exchange;
    state.change({key, desired}, jobs);
    return StoreExchange{true, desired};
  });
}

Future<void> FileStore::wait(std::vector<std::string> keys, CallOptions options) {
  return later(detail::wait_for_keys(std::move(keys), options, State::dropper(state_), nullptr));
}

Future<bool> FileStore::remove(std::string key) {
  return submit<bool>(true, [key = std::move(key)](State& state, StoreTable::Jobs& jobs) {
    std::unique_lock lock(state.mutex);
    if (state.table.find(key) == nullptr) return false;
    lock.unlock();
    state.change({key, std::nullopt}, jobs);
    return true;
  });
}

Future<StoreView> FileStore::list(std::string prefix) {
  return submit<StoreView>(false, [prefix = std::move(prefix)](State& state, StoreTable::Jobs&) {
    std::lock_guard lock(state.mutex);
    return state.table.view(prefix);
  });
}

Future<StoreView> FileStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  return later(detail::wait_for_change(std::move(prefix), after, options, State::dropper(state_), nullptr));
}

}  // namespace weft::rpc
