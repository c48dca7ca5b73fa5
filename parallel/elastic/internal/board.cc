#include <weft/parallel/elastic/internal/board.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/job/membership/roster.h>

#include <sstream>
#include <utility>

namespace weft::elastic::detail {
namespace {

std::string exclusion_key(const std::string& worker) {
  return std::string(rpc::membership_keys::excluded) + worker;
}

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto look_limit = seconds{30};         // of one watch
constexpr auto pause = milliseconds{100};        // before the store is asked again
constexpr auto reach_limit = seconds{30};        // as long as the default lease of a member
constexpr std::uint64_t after_ranks = 1U << 20;  // orders of workers to which the launcher gave no rank

std::pair<std::uint64_t, std::uint64_t> incarnation_and_order(const std::string& text) {
  std::istringstream words(text);
  std::uint64_t incarnation = 0, order = 0;
  if (!(words >> incarnation >> order))
    throw rpc::Error(rpc::ErrorKind::protocol_error,
                     "malformed record of a ready worker: '" + text + "', expected 'INCARNATION ORDER'");
  return {incarnation, order};
}

}  // namespace

std::shared_ptr<Board> Board::open(const rpc::Job& job, const std::string& name) {
  const std::shared_ptr<Board> board(new Board(job.agent(), job.store(), name));
  board->look();
  board->listen();
  return board;
}

Board::Board(rpc::Agent& agent, std::shared_ptr<rpc::Store> store, const std::string& name)
    : agent_(agent),
      store_(std::move(store)),
      prefix_("elastic/" + name + "/"),
      loop_(agent.core()->pick_loop()),
      watch_(rpc::Job(agent).watch_members()) {}

void Board::close() {
  rpc::Future<bool> look, listen;
  {
    rpc::MutexLock lock(mutex_);
    closed_ = true;
    look = std::move(look_);
    listen = std::move(listen_);
  }
  look.cancel();
  listen.cancel();
}

template <class Ask>
auto Board::ask(Ask ask) const {
  for (const auto until = rpc::Clock::now() + reach_limit;;) {
    try {
      return ask().get();
    } catch (const rpc::Error& error) {
      const bool again =
          error.kind() == rpc::ErrorKind::unavailable || error.kind() == rpc::ErrorKind::deadline_exceeded;
      if (!again || rpc::Clock::now() >= until) throw;
    }
    rpc::MutexLock lock(mutex_);
    if (changed_.wait_for(lock, pause, [&]() WEFT_REQUIRES(mutex_) { return failure_.has_value(); }))
      throw *failure_;
  }
}

// --- Writing ---

void Board::announce() {
  const std::size_t rank = rpc::Job(agent_).rank();
  std::uint64_t order = rank;
  if (rank == rpc::Rendezvous::no_rank)
    order =
        after_ranks + static_cast<std::uint64_t>(ask([&] { return store_->add(prefix_ + "arrivals", 1); }));
  const std::string record = std::to_string(agent_.id().incarnation) + " " + std::to_string(order);
  ask([&] { return store_->set(ready_key(agent_.name()), record); });
  refresh();
}

void Board::remove(const rpc::AgentId& worker) {
  // If this removes the record of a next incarnation of that name, the incarnation announces itself again
  // (run.cc).
  if (refresh().ready.contains(worker)) ask([&] { return store_->remove(ready_key(worker.name)); });
  refresh();
}

void Board::exclude(const rpc::AgentId& worker, const std::string& why) {
  if (!refresh().ready.contains(worker)) return;
  ask([&] {
    return store_->set(exclusion_key(worker.name), std::to_string(worker.incarnation) + " " + why);
  });
  remove(worker);
}

std::optional<std::string> Board::end_exclusion() {
  const std::string key = exclusion_key(agent_.name());
  const auto text = ask([&] { return store_->try_get(key); });
  const std::string own = std::to_string(agent_.id().incarnation) + " ";
  if (!text || !text->starts_with(own)) return std::nullopt;
  ask([&] { return store_->remove(key); });
  return text->substr(own.size());
}

void Board::replace(const View& seen, const Generation& next) {
  ask([&] { return store_->compare_set(prefix_ + "generation", seen.text, to_text(next)); });
}

// --- Reading ---

Board::View Board::view_locked() const {
  if (failure_) throw *failure_;
  View view{.version = version_};
  if (const auto found = entries_.find(prefix_ + "generation"); found != entries_.end()) {
    view.text = found->second;
    view.current = generation_from_text(found->second);
  }
  const std::string ready = ready_key("");
  for (auto entry = entries_.lower_bound(ready); entry != entries_.end() && entry->first.starts_with(ready);
       ++entry) {
    const auto [incarnation, order] = incarnation_and_order(entry->second);
    const rpc::AgentId id{entry->first.substr(ready.size()), incarnation};
    view.ready.insert(id);
    if (present_.contains(id)) view.candidates.push_back({id, order});
  }
  view.gone = gone_;
  return view;
}

Board::View Board::view() const {
  rpc::MutexLock lock(mutex_);
  return view_locked();
}

Board::View Board::refresh() {
  rpc::StoreView all = ask([&] { return store_->list(prefix_); });
  rpc::MutexLock lock(mutex_);
  if (all.version > store_version_) {
    store_version_ = all.version;
    if (entries_ != all.entries) {
      entries_ = std::move(all.entries);
      ++version_;
      changed_.notify_all();
    }
  }
  return view_locked();
}

bool Board::wait(std::uint64_t version, rpc::Clock::time_point until) const {
  rpc::MutexLock lock(mutex_);
  const bool changed = changed_.wait_until(
      lock, until, [&]() WEFT_REQUIRES(mutex_) { return failure_.has_value() || version_ != version; });
  if (failure_) throw *failure_;
  return changed;
}

void Board::poke() {
  rpc::MutexLock lock(mutex_);
  ++version_;
  changed_.notify_all();
}

// --- Watching for changes ---

void Board::look() {
  std::uint64_t after = 0, number = 0;
  {
    rpc::MutexLock lock(mutex_);
    if (closed_ || failure_) return;
    after = store_version_;
    number = ++looks_;
  }
  auto look = store_->watch(prefix_, after, {.timeout = look_limit})
                  .then([self = shared_from_this()](rpc::Result<rpc::StoreChanges>&& changes) {
                    self->take_changes(std::move(changes));
                    return true;
                  });
  {
    rpc::MutexLock lock(mutex_);
    if (looks_ != number) return;  // answered already
    if (!closed_) {
      look_ = std::move(look);
      return;
    }
  }
  look.cancel();
}

void Board::take_changes(rpc::Result<rpc::StoreChanges>&& changes) {
  bool later = false;
  if (changes.ok()) {
    const rpc::StoreChanges now = std::move(changes).get();
    rpc::MutexLock lock(mutex_);
    if (now.version > store_version_) {  // otherwise a refresh() has seen a later version
      store_version_ = now.version;
      now.apply_to(entries_);
      ++version_;
      changed_.notify_all();
    }
  } else {
    later = rpc::error_kind(changes.error()) != rpc::ErrorKind::deadline_exceeded;
  }
  // If the store is gone for good, the membership ends too, and take_events() keeps its error.
  later ? look_later() : look();
}

void Board::look_later() {
  loop_->post([self = shared_from_this()] {
    self->loop_->schedule(self->loop_->now() + pause, [self] { self->look(); });
  });
}

void Board::listen() {
  std::uint64_t number = 0;
  {
    rpc::MutexLock lock(mutex_);
    if (closed_ || failure_) return;
    number = ++listens_;
  }
  auto listen = watch_->next().then([self = shared_from_this()](auto&& events) {
    self->take_events(std::move(events));
    return true;
  });
  {
    rpc::MutexLock lock(mutex_);
    if (listens_ != number) return;
    if (!closed_) {
      listen_ = std::move(listen);
      return;
    }
  }
  listen.cancel();
}

void Board::take_events(rpc::Result<std::vector<rpc::MemberEvent>>&& events) {
  {
    rpc::MutexLock lock(mutex_);
    if (closed_) return;
    if (events.ok()) {
      for (const rpc::MemberEvent& event : events.value()) {
        const rpc::AgentId id = event.member.id();
        if (event.change == rpc::MemberChange::joined) {
          present_.insert(id);
        } else {
          present_.erase(id);
          gone_.insert(id);
        }
      }
    } else {
      failure_ = rpc::error_of(events.error());
    }
    ++version_;
    changed_.notify_all();
    if (failure_) return;
  }
  listen();
}

}  // namespace weft::elastic::detail
