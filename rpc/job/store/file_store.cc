// One thread does all work on the file: it runs the posted operations in order. An operation takes the log's
// lock, applies the records that other processes have appended, does its work, and appends its own records
// (locked()). While operations wait or leases exist, the thread polls the file.
//
// Leases: a renewal increments a number in the file, the beat. Each process observes the beats
// (check_leases()). A process that has not seen a beat change for the lease's time takes the exclusive
// lock, checks again, and appends a record that ends the lease. All processes then remove its keys.
#include <weft/rpc/job/store/file_store.h>

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/job/store/store_log.h>
#include <weft/rpc/job/store/store_table.h>

#include <unistd.h>

#include <thread>

namespace weft::rpc {
namespace {

constexpr auto longest_trust = std::chrono::seconds{1};

Error closed_error(const StoreLog& log) {
  return Error(ErrorKind::shut_down, "the store " + log.path() + " has closed");
}

}  // namespace

// The state that the store and its thread share. Only the thread uses the log.
struct FileStore::State {
  // Runs on the thread; gets an error if the store closes first.
  using Task = UniqueFunction<void(State&, const Error*)>;

  State(const std::string& path, FileStoreOptions o) : options(o), log(path) {}

  struct Beat {  // of a lease: the number that a renewal changes, and its position in the file
    std::uint64_t at = 0;
    std::uint64_t seen = 0;
  };

  const FileStoreOptions options;
  // Used by the thread only.
  StoreLog log;
  std::map<LeaseId, Beat> beats;
  LeaseId last_lease = no_lease;
  Clock::time_point checked{}, read{};  // the last check of the leases, and the last read under the lock

  Mutex mutex;
  Condition changed;
  StoreTable table WEFT_GUARDED_BY(mutex);
  std::deque<Task> tasks WEFT_GUARDED_BY(mutex);
  bool closed WEFT_GUARDED_BY(mutex) = false;
  std::thread thread WEFT_GUARDED_BY(mutex);

  static void run(const std::shared_ptr<State>& self);
  void poll();
  void check_leases(Clock::time_point now);
  void fail_late();
  // Holds the log's lock during `work`, after applying the records that others have appended.
  template <class F>
  void locked(bool exclusive, F&& work);
  void apply(StoreLog::Record record, StoreTable::Jobs& jobs);
  void change(StoreLog::Record record, StoreTable::Jobs& jobs);
  void check(LeaseId lease) const;  // throws lease_lost
  void lock_log(bool exclusive);
  void post(Task task);

  static detail::DropWait dropper(const std::shared_ptr<State>& state) {
    return [weak = std::weak_ptr(state)](const std::shared_ptr<StoreWait>& wait) {
      const auto store = weak.lock();
      if (store == nullptr) return;
      MutexLock lock(store->mutex);
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
      MutexLock lock(state.mutex);
      const auto due = [&]() WEFT_REQUIRES(state.mutex) { return state.closed || !state.tasks.empty(); };
      if (state.table.waits() != 0) {
        state.changed.wait_for(lock, state.options.interval, due);
      } else if (state.table.leases() != 0) {
        state.changed.wait_for(lock, state.table.tick_interval(), due);
      } else {
        // Waits and leases start as tasks, so `due` covers them.
        state.changed.wait(lock, due);
      }
      if (state.closed) return;
      tasks.swap(state.tasks);
    }
    for (Task& task : tasks) task(state, nullptr);
    if (tasks.empty() || !state.beats.empty()) state.poll();
    state.fail_late();
  }
}

void FileStore::State::poll() {
  const auto now = Clock::now();
  try {
    // A file on another host may have grown without this host's knowledge; locking it queries that host.
    if (log.grown() || now - read >= longest_trust) locked(false, [](StoreTable::Jobs&) {});
    check_leases(now);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unavailable) return;  // busy: retried at the next poll
    std::vector<std::shared_ptr<StoreWait>> waits;
    {
      MutexLock lock(mutex);
      waits = table.take_all();
    }
    for (const auto& wait : waits) wait->fail(error);
  }
}

// Ends the leases whose renewals this process has not seen for their time.
void FileStore::State::check_leases(Clock::time_point now) {
  if (beats.empty()) return;
  {
    MutexLock lock(mutex);
    if (now - checked < table.tick_interval()) return;
  }
  checked = now;
  const auto due = [&] {
    for (auto& [lease, beat] : beats) {
      const std::uint64_t number = log.beat(beat.at);
      if (std::exchange(beat.seen, number) == number) continue;
      MutexLock lock(mutex);
      table.renew(lease, now);
    }
    MutexLock lock(mutex);
    table.tick(now);
    return table.due();
  };
  bool late = false;
  locked(false, [&](StoreTable::Jobs&) { late = !due().empty(); });
  if (!late) return;
  locked(true, [&](StoreTable::Jobs& jobs) {  // another process may have renewed or ended it in the meantime
    for (const LeaseId lease : due()) change({.kind = StoreLog::Kind::end, .lease = lease}, jobs);
  });
}

void FileStore::State::fail_late() {
  std::vector<std::shared_ptr<StoreWait>> late;
  {
    MutexLock lock(mutex);
    late = table.take_late(Clock::now());
  }
  for (const auto& wait : late) wait->fail(Error(ErrorKind::deadline_exceeded, "the deadline has passed"));
}

void FileStore::State::lock_log(bool exclusive) {
  // Never a blocking lock: its holder may be stopped, and close() must end this thread in any case.
  const auto until = Clock::now() + options.timeout;
  while (!log.try_lock(exclusive)) {
    MutexLock lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds{1}, [&]() WEFT_REQUIRES(mutex) { return closed; });
    if (closed) throw closed_error(log);
    if (Clock::now() >= until)
      throw Error(ErrorKind::unavailable, "the store " + log.path() +
                                              " has been locked by another process for " +
                                              std::to_string(options.timeout.count()) + " ms");
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
    read = Clock::now();
    work(jobs);
  };
  const Result<void> done = capture(inside);
  for (Callback& job : jobs) job();  // also if reading failed: these have been removed from the table
  if (!done.ok()) std::rethrow_exception(done.error());
}

void FileStore::State::apply(StoreLog::Record record, StoreTable::Jobs& jobs) {
  const auto now = Clock::now();
  MutexLock lock(mutex);
  switch (record.kind) {
    case StoreLog::Kind::set:
      return table.set(record.key, std::move(record.value), record.lease, jobs);
    case StoreLog::Kind::remove:
      table.remove(record.key, jobs);
      return;
    case StoreLog::Kind::grant:
      last_lease = record.lease;
      beats[record.lease] = {record.beat_at, log.beat(record.beat_at)};
      return table.grant(record.lease, record.ttl, now);
    case StoreLog::Kind::end:
      beats.erase(record.lease);
      return table.end_lease(record.lease, jobs);
  }
}

void FileStore::State::change(StoreLog::Record record, StoreTable::Jobs& jobs) {
  apply(log.append(std::move(record)), jobs);
}

void FileStore::State::check(LeaseId lease) const {
  if (lease != no_lease && !beats.contains(lease)) throw detail::lease_lost(lease);
}

void FileStore::State::post(Task task) {
  {
    MutexLock lock(mutex);
    if (!closed) {
      tasks.push_back(std::move(task));
      changed.notify_all();
      return;
    }
  }
  const Error error = closed_error(log);
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
    throw Error(ErrorKind::invalid_argument,
                "'" + std::string(url) + "' is not the URL of a file store, expected file:///path");
  return std::string(url.substr(scheme.size()));
}

void FileStore::close() {
  std::deque<State::Task> tasks;
  std::vector<std::shared_ptr<StoreWait>> waits;
  std::thread thread;
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    tasks.swap(state_->tasks);
    thread.swap(state_->thread);
    state_->changed.notify_all();
  }
  if (thread.joinable()) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // close() runs in a continuation on this thread, which ends after that job
    } else {
      thread.join();
    }
  }
  {
    MutexLock lock(state_->mutex);
    waits = state_->table.take_all();
  }
  const Error error = closed_error(state_->log);
  for (auto& task : tasks) task(*state_, &error);
  for (const auto& wait : waits) wait->fail(error);
}

Future<void> FileStore::discard() {
  ::unlink(state_->log.path().c_str());
  return Future<void>::made(Result<void>{});
}

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
      MutexLock lock(state.mutex);
      if (state.closed) return wait->fail(closed_error(state.log));
      state.table.wait(wait, jobs);
    }
    for (Callback& job : jobs) job();
  });
  return std::move(waiting.future);
}

Future<void> FileStore::set(std::string key, std::string value, LeaseId lease) {
  return submit<void>(
      true, [key = std::move(key), value = std::move(value), lease](State& state, StoreTable::Jobs& jobs) {
        state.check(lease);
        state.change({.key = key, .value = value, .lease = lease}, jobs);
      });
}

Future<std::string> FileStore::get(std::string key, CallOptions options) {
  return later(detail::wait_for_value(std::move(key), options, State::dropper(state_), nullptr));
}

Future<std::optional<std::string>> FileStore::try_get(std::string key) {
  return submit<std::optional<std::string>>(false, [key = std::move(key)](State& state, StoreTable::Jobs&) {
    MutexLock lock(state.mutex);
    return state.table.copy(key);
  });
}

Future<std::int64_t> FileStore::add(std::string key, std::int64_t delta) {
  return submit<std::int64_t>(true, [key = std::move(key), delta](State& state, StoreTable::Jobs& jobs) {
    MutexLock lock(state.mutex);
    const std::int64_t sum = state.table.sum(key, delta);
    lock.unlock();
    state.change({.key = key, .value = std::to_string(sum)}, jobs);
    return sum;
  });
}

Future<StoreExchange> FileStore::compare_set(std::string key, std::optional<std::string> expected,
                                             std::string desired, LeaseId lease) {
  return submit<StoreExchange>(
      true, [key = std::move(key), expected = std::move(expected), desired = std::move(desired), lease](
                State& state, StoreTable::Jobs& jobs) {
        state.check(lease);
        MutexLock lock(state.mutex);
        StoreExchange exchange{false, state.table.copy(key)};
        lock.unlock();
        if (exchange.actual != expected) return exchange;
        state.change({.key = key, .value = desired, .lease = lease}, jobs);
        return StoreExchange{true, desired};
      });
}

Future<void> FileStore::wait(std::vector<std::string> keys, CallOptions options) {
  return later(detail::wait_for_keys(std::move(keys), options, State::dropper(state_), nullptr));
}

Future<bool> FileStore::remove(std::string key) {
  return submit<bool>(true, [key = std::move(key)](State& state, StoreTable::Jobs& jobs) {
    MutexLock lock(state.mutex);
    if (state.table.find(key) == nullptr) return false;
    lock.unlock();
    state.change({.kind = StoreLog::Kind::remove, .key = key}, jobs);
    return true;
  });
}

Future<StoreView> FileStore::list(std::string prefix) {
  return submit<StoreView>(false, [prefix = std::move(prefix)](State& state, StoreTable::Jobs&) {
    MutexLock lock(state.mutex);
    return state.table.view(prefix);
  });
}

Future<StoreChanges> FileStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  return later(detail::wait_for_change(std::move(prefix), after, options, State::dropper(state_), nullptr));
}

Future<StoreLease> FileStore::grant(std::chrono::nanoseconds ttl) {
  return submit<StoreLease>(true, [ttl](State& state, StoreTable::Jobs& jobs) {
    detail::check_ttl(ttl);
    const StoreLease lease{++state.last_lease, ttl};
    state.change({.kind = StoreLog::Kind::grant, .lease = lease.id, .ttl = ttl}, jobs);
    return lease;
  });
}

Future<void> FileStore::renew(LeaseId lease) {
  return submit<void>(true, [lease](State& state, StoreTable::Jobs&) {
    state.check(lease);
    auto& beat = state.beats[lease];
    state.log.set_beat(beat.at, beat.seen = state.log.beat(beat.at) + 1);
    MutexLock lock(state.mutex);
    state.table.renew(lease, Clock::now());
  });
}

Future<void> FileStore::revoke(LeaseId lease) {
  return submit<void>(true, [lease](State& state, StoreTable::Jobs& jobs) {
    if (state.beats.contains(lease)) state.change({.kind = StoreLog::Kind::end, .lease = lease}, jobs);
  });
}

}  // namespace weft::rpc
