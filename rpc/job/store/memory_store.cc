#include <weft/rpc/job/store/memory_store.h>

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/split_mix.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/job/store/store_table.h>

namespace weft::rpc {

struct MemoryStore::State : std::enable_shared_from_this<State> {
  std::shared_ptr<Loop> loop;
  Mutex mutex;
  StoreTable table WEFT_GUARDED_BY(mutex);
  bool closed WEFT_GUARDED_BY(mutex) = false;
  // Random, so that a lease of an earlier store is not mistaken for one of this store.
  LeaseId next_lease WEFT_GUARDED_BY(mutex) = draw_random() << 32 | 1;
  // The timer's interval, and its number.
  std::chrono::nanoseconds ticks WEFT_GUARDED_BY(mutex) = std::chrono::nanoseconds::max();
  std::uint64_t timer WEFT_GUARDED_BY(mutex) = 0;

  // Starts the timer that ends leases, if it does not run or has a longer interval. The timer refers to the
  // store weakly. An earlier timer stops when it sees a newer number.
  void watch_leases(StoreTable::Jobs& jobs) WEFT_REQUIRES(mutex) {
    if (ticks <= table.tick_interval()) return;
    ticks = table.tick_interval();
    jobs.push_back(next_tick(++timer));
  }
  Callback next_tick(std::uint64_t which) WEFT_REQUIRES(mutex) {
    return [loop = loop, wait = ticks, tick = while_alive(this, [which](State& store) {
                                         store.tick(which);
                                       })]() mutable { loop->schedule_after(wait, std::move(tick)); };
  }
  void tick(std::uint64_t which) {
    StoreTable::Jobs jobs;
    {
      MutexLock lock(mutex);
      if (which != timer) return;
      table.tick(loop->now());
      for (const LeaseId lease : table.due()) table.end_lease(lease, jobs);
      if (table.leases() != 0) {
        jobs.push_back(next_tick(which));
      } else {
        ticks = std::chrono::nanoseconds::max();
      }
    }
    for (Callback& job : jobs) job();
  }
  void drop(const std::shared_ptr<StoreWait>& wait) {
    MutexLock lock(mutex);
    table.drop(wait);
  }
  static detail::DropWait dropper(const std::shared_ptr<State>& state) {
    return [weak = std::weak_ptr(state)](const std::shared_ptr<StoreWait>& wait) {
      if (const auto store = weak.lock()) store->drop(wait);
    };
  }
};

MemoryStore::MemoryStore(std::shared_ptr<Loop> loop) : state_(std::make_shared<State>()) {
  state_->loop = std::move(loop);
}

MemoryStore::~MemoryStore() { close(); }

void MemoryStore::close() {
  std::vector<std::shared_ptr<StoreWait>> waits;
  {
    MutexLock lock(state_->mutex);
    state_->closed = true;
    waits = state_->table.take_all();
  }
  for (const auto& wait : waits) wait->fail(Error(ErrorKind::shut_down, "the store has closed"));
}

std::size_t MemoryStore::waiting() const {
  MutexLock lock(state_->mutex);
  return state_->table.waits();
}

// Runs an operation on the table, then the waits that it completes.
template <class F>
auto MemoryStore::now(F&& operation) {
  using T = std::invoke_result_t<F, StoreTable&, StoreTable::Jobs&>;
  StoreTable::Jobs jobs;
  Result<T> result = [&] {
    MutexLock lock(state_->mutex);
    return capture([&] {
      state_->mutex.assume_locked();
      return operation(state_->table, jobs);
    });
  }();
  for (Callback& job : jobs) job();
  return Future<T>::made(std::move(result));
}

template <class Waiting>
auto MemoryStore::later(Waiting waiting) {
  StoreTable::Jobs jobs;
  bool refused = false;
  {
    MutexLock lock(state_->mutex);
    state_->table.wait(waiting.wait, jobs);
    refused = state_->closed && !waiting.wait->over();
    if (refused) state_->table.drop(waiting.wait);
  }
  if (refused) waiting.wait->fail(Error(ErrorKind::shut_down, "the store has closed"));
  for (Callback& job : jobs) job();
  if (waiting.wait->deadline() && !waiting.wait->over()) {
    // The timer holds both weakly: most waits end long before their deadline.
    Loop* const loop = state_->loop.get();
    loop->post([loop, state = std::weak_ptr(state_), wait = std::weak_ptr(waiting.wait),
                when = *waiting.wait->deadline()] {
      loop->schedule(when, [state, wait] {
        const auto late = wait.lock();
        if (late == nullptr) return;
        late->fail(Error(ErrorKind::deadline_exceeded, "the deadline has passed"));
        if (const auto store = state.lock()) store->drop(late);
      });
    });
  }
  return std::move(waiting.future);
}

Future<void> MemoryStore::set(std::string key, std::string value, LeaseId lease) {
  return now(
      [&](StoreTable& table, StoreTable::Jobs& jobs) { table.set(key, std::move(value), lease, jobs); });
}

Future<std::string> MemoryStore::get(std::string key, CallOptions options) {
  return later(detail::wait_for_value(std::move(key), options, State::dropper(state_), state_->loop));
}

Future<std::optional<std::string>> MemoryStore::try_get(std::string key) {
  return now([&](StoreTable& table, StoreTable::Jobs&) { return table.copy(key); });
}

Future<std::int64_t> MemoryStore::add(std::string key, std::int64_t delta) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) {
    const std::int64_t sum = table.sum(key, delta);
    table.set(key, std::to_string(sum), no_lease, jobs);
    return sum;
  });
}

Future<StoreExchange> MemoryStore::compare_set(std::string key, std::optional<std::string> expected,
                                               std::string desired, LeaseId lease) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) {
    StoreExchange exchange{false, table.copy(key)};
    if (exchange.actual != expected) return exchange;
    table.set(key, desired, lease, jobs);
    return StoreExchange{true, std::move(desired)};
  });
}

Future<void> MemoryStore::wait(std::vector<std::string> keys, CallOptions options) {
  return later(detail::wait_for_keys(std::move(keys), options, State::dropper(state_), state_->loop));
}

Future<bool> MemoryStore::remove(std::string key) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) { return table.remove(key, jobs); });
}

Future<StoreView> MemoryStore::list(std::string prefix) {
  return now([&](StoreTable& table, StoreTable::Jobs&) { return table.view(prefix); });
}

Future<StoreChanges> MemoryStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  return later(
      detail::wait_for_change(std::move(prefix), after, options, State::dropper(state_), state_->loop));
}

Future<StoreLease> MemoryStore::grant(std::chrono::nanoseconds ttl) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) {
    state_->mutex.assume_locked();  // by now()
    detail::check_ttl(ttl);
    const StoreLease lease{state_->next_lease++, ttl};
    table.grant(lease.id, ttl, state_->loop->now());
    state_->watch_leases(jobs);
    return lease;
  });
}

Future<void> MemoryStore::renew(LeaseId lease) {
  return now([&](StoreTable& table, StoreTable::Jobs&) { table.renew(lease, state_->loop->now()); });
}

Future<void> MemoryStore::revoke(LeaseId lease) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) { table.end_lease(lease, jobs); });
}

}  // namespace weft::rpc
