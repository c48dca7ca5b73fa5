#include <weft/rpc/store/memory_store.h>

#include <weft/rpc/store/store_table.h>

#include <mutex>

namespace weft::rpc {

struct MemoryStore::State {
  std::shared_ptr<Loop> loop;
  std::mutex mutex;  // guards table, closed
  StoreTable table;
  bool closed = false;

  void drop(const std::shared_ptr<StoreWait>& wait) {
    std::lock_guard lock(mutex);
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
    std::lock_guard lock(state_->mutex);
    state_->closed = true;
    waits = state_->table.take_all();
  }
  for (const auto& wait : waits) wait->fail(Error(ErrorKind::shut_down, "the store has closed"));
}

std::size_t MemoryStore::waiting() const {
  std::lock_guard lock(state_->mutex);
  return state_->table.waits();
}

// Runs an operation on the table, then answers those who waited for what it changed.
template <class F>
auto MemoryStore::now(F&& operation) {
  using T = std::invoke_result_t<F, StoreTable&, StoreTable::Jobs&>;
  StoreTable::Jobs jobs;
  Result<T> result = [&] {
    std::lock_guard lock(state_->mutex);
    return capture([&] { return operation(state_->table, jobs); });
  }();
  for (Job& job : jobs) job();
  return Future<T>::made(std::move(result));
}

template <class Waiting>
auto MemoryStore::later(Waiting waiting) {
  StoreTable::Jobs jobs;
  bool refused = false;
  {
    std::lock_guard lock(state_->mutex);
    state_->table.wait(waiting.wait, jobs);
    refused = state_->closed && !waiting.wait->over();
    if (refused) state_->table.drop(waiting.wait);
  }
  if (refused) waiting.wait->fail(Error(ErrorKind::shut_down, "the store has closed"));
  for (Job& job : jobs) job();
  if (waiting.wait->deadline() && !waiting.wait->over()) {
    // The timer holds both weakly: most waits end long before it.
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

Future<void> MemoryStore::set(std::string key, std::string value) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) { table.set(key, std::move(value), jobs); });
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
    table.set(key, std::to_string(sum), jobs);
    return sum;
  });
}

Future<StoreExchange> MemoryStore::compare_set(std::string key, std::optional<std::string> expected,
                                               std::string desired) {
  return now([&](StoreTable& table, StoreTable::Jobs& jobs) {
    StoreExchange exchange{false, table.copy(key)};
    if (exchange.actual != expected) return exchange;
    table.set(key, desired, jobs);
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

Future<StoreView> MemoryStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  return later(
      detail::wait_for_change(std::move(prefix), after, options, State::dropper(state_), state_->loop));
}

}  // namespace weft::rpc
