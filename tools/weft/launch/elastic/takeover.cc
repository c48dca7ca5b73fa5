#include "tools/weft/launch/elastic/takeover.h"

#include <weft/rpc/codec/packed.h>
#include <weft/rpc/job/store/lease_keeper.h>

#include <algorithm>
#include <charconv>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "tools/weft/launch/elastic/store_watch.h"

namespace weft::tool::launch::elastic {
namespace {

using namespace std::chrono_literals;

constexpr auto acquire_pause = 200ms;
constexpr auto save_pause = 500ms;  // after an error
constexpr auto release_timeout = 5s;
constexpr std::string_view workers_prefix = "driver/workers/";

template <class T>
std::string packed_text(const T& value) {
  const rpc::Buffer bytes = rpc::pack(value);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
T unpacked_text(const std::string& text) {
  return rpc::unpack<T>(rpc::Buffer::copy(std::as_bytes(std::span(text))));
}

std::optional<WorkerId> id_of(const std::string& key, const std::string& prefix) {
  WorkerId id = 0;
  const char* const last = key.data() + key.size();
  const auto [end, error] = std::from_chars(key.data() + std::min(prefix.size(), key.size()), last, id);
  if (error != std::errc{} || end != last) return std::nullopt;
  return id;
}

std::string new_owner() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

}  // namespace

std::string takeover_keys::order(const std::string& worker) { return std::string(orders) + worker; }
std::string takeover_keys::worker(const std::string& worker) { return std::string(workers_prefix) + worker; }

std::string to_text(const DriverState& state) { return packed_text(state); }
std::string to_text(const KeptWorker& worker) { return packed_text(worker); }
KeptWorker kept_worker(const std::string& text) {
  try {
    return unpacked_text<KeptWorker>(text);
  } catch (const rpc::Error&) {
    return {true, false, 1, "has a malformed record in the store", ""};
  }
}

std::chrono::nanoseconds takeover_lease(std::chrono::nanoseconds orphan_wait) {
  return std::clamp<std::chrono::nanoseconds>(orphan_wait / 4, 2s, 10s);
}

// Callbacks of the store's futures have a weak pointer to this object, and run on the loop.
struct Takeover::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::chrono::nanoseconds ttl,
        Calls calls)
      : loop(std::move(loop)), store(std::move(store)), ttl(ttl), calls(std::move(calls)) {}

  const std::shared_ptr<rpc::Loop> loop;
  const std::shared_ptr<rpc::Store> store;
  const std::chrono::nanoseconds ttl;
  const Calls calls;
  const std::string owner = new_owner();
  std::set<rpc::Loop::TimerId> timers;
  std::optional<rpc::Clock::time_point> give_up;
  std::string other;  // the driver that has the lease
  rpc::StoreLease lease;
  std::optional<rpc::LeaseKeeper> keeper;
  std::optional<std::string> saved;  // the state in the store
  std::string job;
  std::map<std::string, std::string> records;
  std::optional<StoreWatch> watch;
  bool releasing = false, finished = false;

  // Calls then(result) on the loop, unless this object is finished.
  template <class T, class Then>
  void await(rpc::Future<T> future, Then then) {
    std::move(future).then(
        [loop = loop, weak = weak_from_this(), then = std::move(then)](rpc::Result<T>&& result) mutable {
          loop->post([weak, then = std::move(then), result = std::move(result)]() mutable {
            if (const auto self = weak.lock(); self != nullptr && !self->finished) then(std::move(result));
          });
        });
  }
  void later(std::chrono::nanoseconds time, std::function<void()> job) {
    const auto timer = std::make_shared<rpc::Loop::TimerId>();
    *timer = loop->schedule(loop->now() + time, [weak = weak_from_this(), timer, job = std::move(job)] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->timers.erase(*timer);
      job();
    });
    timers.insert(*timer);
  }
  void finish() {
    finished = true;
    for (const auto timer : std::exchange(timers, {})) loop->cancel(timer);
    keeper.reset();
    watch.reset();
  }
  void lose(const std::string& why) {
    if (releasing) return;
    const auto self = shared_from_this();  // the call may destroy its owner
    finish();
    calls.lost(why);
  }

  // The lease of a driver that has died remains until it expires. A driver that lives renews its lease.
  void acquire() {
    if (!give_up) give_up = loop->now() + 3 * ttl;
    if (loop->now() > *give_up)
      return lose(other.empty() ? "the store cannot be reached" : "another driver runs this job");
    await(store->try_get(std::string(takeover_keys::lease)),
          [this](rpc::Result<std::optional<std::string>>&& holder) {
            if (!holder.ok()) return acquire_later();
            if (const auto& name = holder.value()) {
              if (*name == owner) return drive();  // the answer to an earlier attempt was lost
              if (std::exchange(other, *name).empty()) calls.waits();
              return acquire_later();
            }
            await(store->grant(ttl), [this](rpc::Result<rpc::StoreLease>&& granted) {
              if (!granted.ok()) return acquire_later();
              lease = granted.value();
              await(store->compare_set(std::string(takeover_keys::lease), std::nullopt, owner, lease.id),
                    [this](rpc::Result<rpc::StoreExchange>&& set) {
                      if (!set.ok() || set.value().actual != owner) return acquire_later();
                      drive();
                    });
            });
          });
  }
  void acquire_later() {
    later(acquire_pause, [this] { acquire(); });
  }

  void drive() {
    keeper.emplace(store, loop, lease, [this](const rpc::Error&) {
      lose("its lease in the store has ended, and another driver may take over");
    });
    read_state();
  }
  void read_state() {
    await(store->try_get(std::string(takeover_keys::state)),
          [this](rpc::Result<std::optional<std::string>>&& text) {
            if (!text.ok()) return later(save_pause, [this] { read_state(); });
            saved = std::move(text).get();
            std::optional<SavedJob> job;
            try {
              if (saved) job = unpacked_text<SavedJob>(*saved);
            } catch (const rpc::Error& error) {
              return lose(std::string("the state in the store is malformed: ") + error.what());
            }
            calls.acquired(std::move(job));
          });
  }

  void save(const std::string& text, std::function<void()> done) {
    await(store->compare_set(std::string(takeover_keys::state), saved, text),
          [this, text, done = std::move(done)](rpc::Result<rpc::StoreExchange>&& set) mutable {
            if (!set.ok())
              return later(save_pause,
                           [this, text, done = std::move(done)]() mutable { save(text, std::move(done)); });
            if (set.value().actual != text) return lose("another driver has taken over");
            saved = text;
            done();
          });
  }

  void list(const std::string& of, std::function<void(Workers)> found) {
    const std::string prefix = takeover_keys::worker(of) + "/";
    await(store->list(prefix),
          [this, of, prefix, found = std::move(found)](rpc::Result<rpc::StoreView>&& view) mutable {
            if (!view.ok())
              return later(save_pause,
                           [this, of, found = std::move(found)]() mutable { list(of, std::move(found)); });
            Workers workers;
            for (const auto& [key, text] : view.value().entries)
              if (const auto id = id_of(key, prefix)) workers[*id] = kept_worker(text);
            found(std::move(workers));
          });
  }

  void changed(const rpc::StoreChanges& changes) {
    const std::string prefix = takeover_keys::worker(job) + "/";
    const auto before = records;
    changes.apply_to(records);
    for (const auto& [key, text] : before)
      if (const auto id = id_of(key, prefix); id && !records.contains(key) && !finished)
        calls.changed(*id, std::nullopt);
    for (const auto& [key, text] : std::map(records)) {
      const auto old = before.find(key);
      if (const auto id = id_of(key, prefix); id && (old == before.end() || old->second != text) && !finished)
        calls.changed(*id, kept_worker(text));
    }
  }

  void stop(const std::string& key) {
    await(store->set(key, "stop"), [this, key](rpc::Result<void>&& set) {
      if (!set.ok()) stop(key);  // the store has already retried for some time
    });
  }

  // Removes the lease last, so that no other driver takes over before all other keys are removed.
  void release(std::function<void()> done) {
    watch.reset();
    releasing = true;
    await(store->list("driver/"), [this, done](rpc::Result<rpc::StoreView>&& view) {
      const auto left = std::make_shared<std::size_t>(1);
      const auto finish = [this, left, done] {
        if (--*left != 0) return;
        keeper.reset();
        await(store->revoke(lease.id), [this, done](rpc::Result<void>&&) {
          this->finish();
          done();
        });
      };
      if (view.ok())
        for (const auto& [key, text] : view.value().entries) {
          if (key == takeover_keys::lease) continue;
          ++*left;
          await(store->remove(key), [finish](rpc::Result<bool>&&) { finish(); });
        }
      finish();
    });
    later(release_timeout, [this, done] {
      finish();
      done();
    });
  }
};

Takeover::Takeover(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store,
                   std::chrono::nanoseconds lease, Calls calls)
    : state_(std::make_shared<State>(std::move(loop), std::move(store), lease, std::move(calls))) {}
Takeover::~Takeover() { state_->finish(); }

const std::string& Takeover::owner() const { return state_->owner; }
void Takeover::acquire() { state_->acquire(); }
void Takeover::list(const std::string& job, std::function<void(Workers)> found) {
  state_->list(job, std::move(found));
}
void Takeover::watch(const std::string& job) {
  state_->job = job;
  state_->watch.emplace(
      state_->loop, state_->store, takeover_keys::worker(job) + "/",
      [state = state_.get()](const rpc::StoreChanges& changes) { state->changed(changes); });
}
void Takeover::save(const SavedJob& job, std::function<void()> done) {
  state_->save(packed_text(job), std::move(done));
}
void Takeover::stop(WorkerId worker) {
  state_->stop(takeover_keys::order(state_->job + "/" + std::to_string(worker)));
}
void Takeover::forget(WorkerId worker) {
  const std::string name = state_->job + "/" + std::to_string(worker);
  (void)state_->store->remove(takeover_keys::worker(name));
  (void)state_->store->remove(takeover_keys::order(name));
}
void Takeover::release(std::function<void()> done) { state_->release(std::move(done)); }

}  // namespace weft::tool::launch::elastic
