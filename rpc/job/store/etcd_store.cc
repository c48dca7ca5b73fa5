// Reads and changes are requests of the EtcdClient. A wait (get, wait, watch) reads first and, if it is not
// satisfied, waits in the EtcdWatch for the next change after the version that it has read. sees_since()
// returns whether the watch has recorded every change since that version. If not, the wait reads again. So no
// change is missed, even if the stream of changes is opened after the read, or has lost its history.
#include <weft/rpc/job/store/etcd_store.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/job/store/internal/etcd_client.h>
#include <weft/rpc/job/store/internal/etcd_watch.h>
#include <weft/rpc/transport/address.h>

#include <deque>
#include <set>

namespace weft::rpc {
namespace {

constexpr std::string_view default_port = ":2379";
constexpr std::size_t max_compared = 64 * 1024;

Error etcd_closed() { return Error(ErrorKind::shut_down, "the etcd store has closed"); }

std::vector<detail::HttpAddress> servers_of(const EtcdStoreOptions& options) {
  std::vector<detail::HttpAddress> servers;
  for (const std::string& text : options.servers) {
    Address address = Address::parse("tcp://" + text);
    servers.push_back({std::move(address.host), std::move(address.port)});
  }
  if (servers.empty())
    throw Error(ErrorKind::invalid_argument, "EtcdStoreOptions::servers is empty, expected at least one");
  return servers;
}

}  // namespace

struct EtcdStore::State : std::enable_shared_from_this<State> {
  // A wait. It ends exactly once, by a result, its deadline, a cancellation or close(). Used on the loop.
  struct Waiting {
    virtual ~Waiting() = default;
    virtual void fail(const Error& error) = 0;

    std::optional<Clock::time_point> deadline;
    Loop::TimerId timer = 0;
    std::shared_ptr<StoreWait> kept;  // by the watch
    bool over = false;
  };

  template <class T>
  struct WaitingFor final : Waiting {
    WaitingFor(Promise<T> p, std::string t) : promise(std::move(p)), title(std::move(t)) {}
    void fail(const Error& error) override {
      promise.fail(Error(error.kind(), title + ": " + error.what(), error.execution()));
    }
    Promise<T> promise;
    const std::string title;  // the operation and its key, for errors
  };

  State(std::shared_ptr<Loop> l, const EtcdStoreOptions& o)
      : loop(std::move(l)),
        prefix(o.prefix),
        timeout(o.timeout),
        client(loop, servers_of(o), timeout / 3),
        changes(std::make_shared<detail::EtcdWatch>(loop, client, prefix, timeout)) {}

  const std::shared_ptr<Loop> loop;
  const std::string prefix;
  const std::chrono::nanoseconds timeout;
  detail::EtcdClient client;
  const std::shared_ptr<detail::EtcdWatch> changes;
  std::set<std::shared_ptr<Waiting>> waiting;
  std::map<std::string, std::deque<Promise<void>>> adders;  // by key; the first one is running
  bool closed = false;

  std::string full(const std::string& key) const { return prefix + key; }
  Clock::time_point until() const { return later(loop->now(), timeout); }
  Clock::time_point until(const Waiting& wait) const {
    return wait.deadline ? std::min(*wait.deadline, until()) : until();
  }

  // --- Operations, as futures of the client ---

  template <class T, class F>
  static Future<T> run(const std::shared_ptr<State>& state, F operation) {
    Promise<T> promise(state->loop);
    auto future = promise.future();
    state->loop->post([state, operation = std::move(operation), promise = std::move(promise)]() mutable {
      if (state->closed) return promise.fail(etcd_closed());
      Result<Future<T>> begun = capture([&] { return operation(*state); });
      if (!begun.ok()) return promise.fail(begun.error());
      std::move(begun).get().then([promise = std::move(promise)](Result<T>&& result) mutable {
        promise.complete(std::move(result));
      });
    });
    return future;
  }

  // Adders of one client run one after the other for each key, so that they do not make each other fail.
  struct QueuedAdd {
    std::shared_ptr<State> state;
    std::string key;
    ~QueuedAdd() {
      auto& line = state->adders[key];
      line.pop_front();
      if (line.empty()) {
        state->adders.erase(key);
      } else {
        line.front().complete(Result<void>{});
      }
    }
  };
  static Task<std::int64_t> add(std::shared_ptr<State> self, std::string key, std::int64_t delta) {
    auto& line = self->adders[key];
    Promise<void> promise(self->loop);
    Future<void> own_turn = promise.future();
    line.push_back(std::move(promise));
    if (line.size() == 1) line.front().complete(Result<void>{});
    const QueuedAdd queued{self, key};
    co_await std::move(own_turn);
    const auto until = self->until();
    detail::EtcdRange found = co_await self->client.get(self->full(key), until);
    std::optional<detail::EtcdEntry> entry;
    if (!found.entries.empty()) entry = std::move(found.entries.front());
    for (;;) {
      const std::int64_t sum = detail::sum_of(key, entry ? &*entry->value : nullptr, delta);
      detail::EtcdExchange done = co_await self->client.exchange_version(
          self->full(key), entry ? entry->version : 0, std::to_string(sum), no_lease, until);
      if (done.stored) co_return sum;
      entry = std::move(done.actual);
    }
  }

  // A request can contain only one large value, so the expected value is compared here.
  static Task<StoreExchange> exchange_large(std::shared_ptr<State> self, std::string key,
                                            std::string expected, std::string desired, LeaseId lease) {
    const auto until = self->until();
    detail::EtcdRange found = co_await self->client.get(self->full(key), until);
    std::optional<detail::EtcdEntry> entry;
    if (!found.entries.empty()) entry = std::move(found.entries.front());
    while (entry && entry->value == expected) {
      detail::EtcdExchange done =
          co_await self->client.exchange_version(self->full(key), entry->version, desired, lease, until);
      if (done.stored) co_return StoreExchange{true, desired};
      entry = std::move(done.actual);
    }
    co_return StoreExchange{false, entry ? std::move(entry->value) : std::nullopt};
  }

  // --- Waits ---

  template <class T, class Start>
  static Future<T> begin_wait(const std::shared_ptr<State>& state, const CallOptions& options,
                              std::string title, Start start) {
    Promise<T> promise(state->loop);
    auto slot = std::make_shared<std::weak_ptr<Waiting>>();  // used on the loop
    promise.on_cancel([weak = std::weak_ptr(state), loop = state->loop, slot] {
      loop->post([weak, slot] {
        const auto self = weak.lock();
        const auto wait = slot->lock();
        if (self != nullptr && wait != nullptr)
          self->end(wait, Error(ErrorKind::cancelled, "the wait was cancelled"));
      });
    });
    auto future = promise.future();
    auto wait = std::make_shared<WaitingFor<T>>(std::move(promise), std::move(title));
    wait->deadline = detail::deadline_of(options);
    state->loop->post([state, wait, slot, start = std::move(start)]() mutable {
      if (state->closed) return wait->fail(etcd_closed());
      *slot = wait;
      state->waiting.insert(wait);
      if (wait->deadline)
        wait->timer = state->loop->schedule(*wait->deadline, [weak = std::weak_ptr(state), wait] {
          wait->timer = 0;
          if (const auto self = weak.lock())
            self->end(wait, Error(ErrorKind::deadline_exceeded, "the deadline has passed"));
        });
      start(state, wait).start(*state->loop).then([state, wait](Result<T>&& result) {
        if (wait->over) return;
        state->forget(wait);
        wait->promise.complete(std::move(result));
      });
    });
    return future;
  }
  void forget(const std::shared_ptr<Waiting>& wait) {
    wait->over = true;
    waiting.erase(wait);
    if (wait->timer != 0) loop->cancel(std::exchange(wait->timer, 0));
  }
  void end(const std::shared_ptr<Waiting>& wait, const Error& error) {
    if (wait->over) return;
    forget(wait);
    if (const auto kept = std::exchange(wait->kept, nullptr)) {
      changes->drop(kept);
      kept->fail(error);  // ends the wait's task
    }
    wait->fail(error);
  }

  // Whether the watch has recorded all changes after `version`. If the watch is closed, sees_since() opens
  // it, so that it records the changes after the next read, and returns false.
  static Task<bool> sees_since(std::shared_ptr<State> self, std::uint64_t version) {
    const bool open = self->changes->is_open();
    if (!open) co_await self->changes->open();
    co_return open && self->changes->known_since() <= version;
  }
  // Waits for the next change under the prefix after `version`. If the result is `whole`, the change itself
  // is unknown.
  Future<StoreChanges> change(const std::string& key, std::uint64_t version,
                              const std::shared_ptr<Waiting>& wait) {
    if (wait->over) return Future<StoreChanges>::made(etcd_closed());
    auto next = detail::wait_for_change(key, version, {}, [](const auto&) {}, loop);
    wait->kept = next.wait;
    changes->wait(next.wait);
    return std::move(next.future);
  }

  static Task<std::string> get(std::shared_ptr<State> self, std::shared_ptr<Waiting> wait, std::string key) {
    for (;;) {
      detail::EtcdRange found = co_await self->client.get(self->full(key), self->until(*wait));
      if (!found.entries.empty()) co_return std::move(*found.entries.front().value);
      const bool sees = co_await sees_since(self, found.version);
      if (!sees) continue;
      StoreChanges changes = co_await self->change(key, found.version, wait);
      if (const auto value = changes.entries.find(key); value != changes.entries.end() && value->second)
        co_return std::move(*value->second);
    }
  }

  static Task<void> wait_for(std::shared_ptr<State> self, std::shared_ptr<Waiting> wait,
                             std::vector<std::string> keys) {
    if (keys.empty()) co_return;
    for (;;) {
      std::set<std::string> missing(keys.begin(), keys.end());
      std::optional<std::uint64_t> version;  // all keys are read at the same version
      for (std::size_t first = 0; first < keys.size(); first += detail::EtcdClient::max_keys) {
        std::vector<std::string> some;
        for (std::size_t i = first; i < std::min(keys.size(), first + detail::EtcdClient::max_keys); ++i)
          some.push_back(self->full(keys[i]));
        const detail::EtcdRange found = co_await self->client.get_some(some, version, self->until(*wait));
        if (!version) version = found.version;
        for (const auto& entry : found.entries) missing.erase(entry.key.substr(self->prefix.size()));
      }
      if (missing.empty()) co_return;
      const bool sees = co_await sees_since(self, *version);
      if (sees) (void)co_await self->change(*missing.begin(), *version, wait);
    }
  }

  static Task<StoreChanges> watch(std::shared_ptr<State> self, std::shared_ptr<Waiting> wait,
                                  std::string prefix, std::uint64_t after) {
    if (!self->changes->is_open()) co_await self->changes->open();
    bool sees = after != 0 && self->changes->known_since() <= after;
    if (sees && after > self->changes->version()) {
      // Other clients have changed etcd since; or the version is from another etcd that was used before.
      const detail::EtcdRange now = co_await self->client.get(self->full(prefix), self->until(*wait));
      sees = now.version >= after;
    }
    if (sees) {
      StoreChanges changes = co_await self->change(prefix, after, wait);
      if (!changes.whole) co_return changes;
    }
    const detail::EtcdRange all = co_await self->client.get_all(self->full(prefix), self->until(*wait));
    StoreChanges whole{all.version, true, {}};
    for (const auto& entry : all.entries)
      whole.entries.emplace(entry.key.substr(self->prefix.size()), entry.value);
    co_return whole;
  }

  void close() {
    if (std::exchange(closed, true)) return;
    for (const auto& wait : std::set(waiting)) end(wait, etcd_closed());
    changes->close(etcd_closed());
    client.close();
  }
};

EtcdStore::EtcdStore(std::shared_ptr<Loop> loop, const EtcdStoreOptions& options)
    : state_(std::make_shared<State>(std::move(loop), options)) {
  (void)io_context_of(*state_->loop);
}

EtcdStore::~EtcdStore() { close(); }

EtcdStoreOptions EtcdStore::options_of(std::string_view url) {
  constexpr std::string_view scheme = "etcd://";
  const auto refuse = [&] {
    throw Error(ErrorKind::invalid_argument,
                "'" + std::string(url) +
                    "' is not the URL of a store in etcd, expected etcd://host:port[,host:port][/prefix]");
  };
  if (!url.starts_with(scheme)) refuse();
  std::string_view rest = url.substr(scheme.size());
  EtcdStoreOptions options;
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    options.prefix = rest.substr(slash + 1);
    if (options.prefix.empty()) refuse();
    if (!options.prefix.ends_with('/')) options.prefix += '/';
    rest = rest.substr(0, slash);
  }
  for (;;) {
    const std::size_t comma = rest.find(',');
    std::string server(rest.substr(0, comma));
    const bool has_port =
        server.find(':', server.rfind(']') == std::string::npos ? 0 : server.rfind(']')) != std::string::npos;
    if (!has_port && !server.empty()) server += default_port;
    try {
      (void)Address::parse("tcp://" + server);
    } catch (const Error&) {
      refuse();
    }
    options.servers.push_back(std::move(server));
    if (comma == std::string_view::npos) return options;
    rest.remove_prefix(comma + 1);
  }
}

void EtcdStore::close() {
  if (state_->loop->running_here()) return state_->close();
  state_->loop->post([state = state_] { state->close(); });
}

Future<void> EtcdStore::set(std::string key, std::string value, LeaseId lease) {
  return State::run<void>(state_, [key = std::move(key), value = std::move(value), lease](State& state) {
    return state.client.put(state.full(key), value, lease, state.until());
  });
}

Future<std::string> EtcdStore::get(std::string key, CallOptions options) {
  std::string title = "store: get '" + key + "'";
  return State::begin_wait<std::string>(
      state_, options, std::move(title),
      [key = std::move(key)](const auto& state, const auto& wait) { return State::get(state, wait, key); });
}

Future<std::optional<std::string>> EtcdStore::try_get(std::string key) {
  return State::run<std::optional<std::string>>(state_, [key = std::move(key)](State& state) {
    return state.client.get(state.full(key), state.until()).then([](Result<detail::EtcdRange>&& result) {
      detail::EtcdRange found = std::move(result).get();
      return found.entries.empty() ? std::nullopt : std::move(found.entries.front().value);
    });
  });
}

Future<std::int64_t> EtcdStore::add(std::string key, std::int64_t delta) {
  return State::run<std::int64_t>(state_, [key = std::move(key), delta](State& state) {
    return State::add(state.shared_from_this(), key, delta).start(*state.loop);
  });
}

Future<StoreExchange> EtcdStore::compare_set(std::string key, std::optional<std::string> expected,
                                             std::string desired, LeaseId lease) {
  return State::run<StoreExchange>(state_, [key = std::move(key), expected = std::move(expected),
                                            desired = std::move(desired), lease](State& state) {
    if (expected && expected->size() > max_compared)
      return State::exchange_large(state.shared_from_this(), key, *expected, desired, lease)
          .start(*state.loop);
    return state.client.exchange(state.full(key), expected, desired, lease, state.until())
        .then([desired](Result<detail::EtcdExchange>&& result) {
          detail::EtcdExchange exchange = std::move(result).get();
          if (exchange.stored) return StoreExchange{true, desired};
          return StoreExchange{false, exchange.actual ? std::move(exchange.actual->value) : std::nullopt};
        });
  });
}

Future<void> EtcdStore::wait(std::vector<std::string> keys, CallOptions options) {
  std::string title = "store: wait for " + detail::keys_text(keys);
  return State::begin_wait<void>(state_, options, std::move(title),
                                 [keys = std::move(keys)](const auto& state, const auto& wait) {
                                   return State::wait_for(state, wait, keys);
                                 });
}

Future<bool> EtcdStore::remove(std::string key) {
  return State::run<bool>(state_, [key = std::move(key)](State& state) {
    return state.client.remove(state.full(key), state.until());
  });
}

Future<StoreView> EtcdStore::list(std::string prefix) {
  return State::run<StoreView>(state_, [prefix = std::move(prefix)](State& state) {
    return state.client.get_all(state.full(prefix), state.until())
        .then([size = state.prefix.size()](Result<detail::EtcdRange>&& result) {
          detail::EtcdRange found = std::move(result).get();
          StoreView view{found.version, {}};
          for (auto& entry : found.entries)
            view.entries.emplace(entry.key.substr(size), *std::move(entry.value));
          return view;
        });
  });
}

Future<StoreChanges> EtcdStore::watch(std::string prefix, std::uint64_t after, CallOptions options) {
  std::string title = "store: watch '" + prefix + "'";
  return State::begin_wait<StoreChanges>(
      state_, options, std::move(title),
      [prefix = std::move(prefix), after](const auto& state, const auto& wait) {
        return State::watch(state, wait, prefix, after);
      });
}

Future<StoreLease> EtcdStore::grant(std::chrono::nanoseconds ttl) {
  return State::run<StoreLease>(state_, [ttl](State& state) {
    detail::check_ttl(ttl);
    return state.client.grant(ttl, state.until());
  });
}

Future<void> EtcdStore::renew(LeaseId lease) {
  return State::run<void>(state_, [lease](State& state) { return state.client.renew(lease, state.until()); });
}

Future<void> EtcdStore::revoke(LeaseId lease) {
  return State::run<void>(state_,
                          [lease](State& state) { return state.client.revoke(lease, state.until()); });
}

Future<void> EtcdStore::discard() {
  return State::run<void>(state_,
                          [](State& state) { return state.client.remove_all(state.prefix, state.until()); });
}

}  // namespace weft::rpc
