#include <weft/rpc/endpoint/sessions.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/recent_map.h>

#include <asio/posix/stream_descriptor.hpp>

#include <poll.h>

#include <algorithm>
#include <optional>

namespace weft::rpc {
namespace {

// Limits of the memory that peers with invented names can use. Peers that never used their session have
// their own limits, because they cost least to invent. A peer beyond a limit counts as gone at once. The
// absent peers of a healthy agent are at most the peers of a job that it loses within the heartbeat's
// timeout, for example by a partition.
constexpr std::size_t max_absent_used = 16384, max_absent_unused = 1024, max_over_unused = 4096;
// More bytes than a healthy peer leaves unacknowledged (link_session.cc).
constexpr std::uint64_t min_kept = std::uint64_t{8} << 20;

// Whether a peer that proves the identity `now` may be the peer that proved `before`. A certificate proves
// one agent. The secret of a job may be replaced while the job runs. Without credentials, the same peer
// proves its user on this host, and nothing beyond.
bool may_be_the_same(const std::string& before, const std::string& now) {
  if (before == now || before.empty()) return true;
  if (before.starts_with("uid:")) return now.empty();
  return before.starts_with("psk:") && !now.empty();
}

}  // namespace

// An absence of a peer. The peer is gone after the timeout, or when its process ends. An Absence belongs to
// one loop; finish() may be called from any thread.
class Sessions::Absence final : public std::enable_shared_from_this<Absence> {
 public:
  Absence(std::weak_ptr<Sessions> sessions, AgentId life, std::shared_ptr<Loop> loop, std::string lost)
      : sessions_(std::move(sessions)),
        life_(std::move(life)),
        loop_(std::move(loop)),
        lost_(std::move(lost)) {}

  void begin(std::chrono::nanoseconds timeout, const std::optional<ProcessId>& process) {
    loop_->dispatch([self = shared_from_this(), timeout, process] {
      if (self->over_) return;
      self->timer_ = self->loop_->schedule(later(self->loop_->now(), timeout), [self, timeout] {
        self->timer_ = 0;
        self->give_up("it did not connect again within " +
                      std::to_string(std::chrono::duration<double>(timeout).count()) +
                      " s (Heartbeat::timeout)");
      });
      if (process) self->watch(*process);
    });
  }
  void finish() {
    loop_->dispatch([self = shared_from_this()] { self->stop(); });
  }

 private:
  void watch(const ProcessId& process) {
    const int descriptor = open_process(process);
    if (descriptor == -1) return loop_->post([self = shared_from_this()] { self->process_ended(); });
    if (descriptor < 0) return;
    process_.emplace(io_context_of(*loop_), descriptor);
    await_end();
  }
  // Asio may report this descriptor as readable because of an earlier descriptor with the same number, so
  // poll() checks it.
  void await_end() {
    process_->async_wait(asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const asio::error_code& error) {
                           if (error) return;
                           self->loop_->run_turn([&] {
                             if (!self->process_) return;
                             pollfd ended{self->process_->native_handle(), POLLIN, 0};
                             ::poll(&ended, 1, 0) > 0 ? self->process_ended() : self->await_end();
                           });
                         });
  }
  void process_ended() { give_up("its process has ended"); }
  void give_up(const std::string& why) {
    if (over_) return;
    stop();
    if (const auto sessions = sessions_.lock())
      sessions->give_up(life_, *this, Error(ErrorKind::peer_lost, lost_ + "; " + why));
  }
  void stop() {
    over_ = true;
    if (timer_ != 0) loop_->cancel(std::exchange(timer_, 0));
    process_.reset();
  }

  const std::weak_ptr<Sessions> sessions_;
  const AgentId life_;
  const std::shared_ptr<Loop> loop_;
  const std::string lost_;  // how the last connection of the peer ended
  bool over_ = false;
  Loop::TimerId timer_ = 0;
  std::optional<asio::posix::stream_descriptor> process_;
};

Sessions::Sessions(const AgentOptions& options, AgentId self, std::uint64_t id_seed, ProcessId own, Gone gone)
    : timeout_(options.heartbeat.timeout),
      self_(std::move(self)),
      id_seed_(id_seed),
      max_kept_(std::max(options.limits.in_flight, min_kept)),
      max_kept_total_(std::max(options.limits.in_flight_total, min_kept)),
      kept_total_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      own_(own),
      gone_(std::move(gone)) {}

Sessions::~Sessions() = default;

std::shared_ptr<Session> Sessions::open(const AgentId& life, const std::string& identity,
                                        const ProcessId& process, bool resumable) {
  MutexLock lock(mutex_);
  const auto known = names_.find(life.incarnation);
  const std::string* owner = life.incarnation == self_.incarnation ? &self_.name
                             : known != names_.end()               ? &known->second
                                                                   : nullptr;
  if (owner != nullptr && *owner != life.name)
    throw Error(ErrorKind::permission_denied, "'" + life.name + "' states the incarnation of '" + *owner +
                                                  "', expected an incarnation of its own");
  if (is_over(life)) return nullptr;
  const auto [place, is_new] = entries_.try_emplace(life);
  Entry& entry = place->second;
  if (!is_new && !may_be_the_same(entry.identity, identity))
    throw Error(ErrorKind::permission_denied,
                to_string(life) + " has proved the identity '" + entry.identity + "', but now proves " +
                    (identity.empty() ? "none" : "'" + identity + "'") + ", expected the same identity");
  if (is_new) names_.emplace(life.incarnation, life.name);
  if (is_new || !identity.empty()) entry.identity = identity;
  if (entry.session == nullptr && resumable)
    entry.session = std::make_shared<Session>(life, id_seed_, max_kept_, kept_total_, max_kept_total_);
  entry.process = process;
  end_absence(entry);
  return resumable ? entry.session : nullptr;
}

bool Sessions::begin_absence(const AgentId& life, const Error& reason, const std::shared_ptr<Loop>& loop) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(life);
  if (found == entries_.end() || found->second.session == nullptr || timeout_.count() <= 0) return false;
  Entry& entry = found->second;
  const bool used = entry.session->used();
  std::size_t& number = used ? absent_used_ : absent_unused_;
  if (number == (used ? max_absent_used : max_absent_unused)) return false;
  // Other peers do not pay for those that keep much.
  if (*kept_total_ > max_kept_total_ && entry.session->kept_bytes() > max_kept_) return false;
  ++number;
  entry.counted_in = &number;
  entry.absence = std::make_shared<Absence>(weak_from_this(), life, loop, reason.what());
  const bool watched = entry.process.is_on_host_of(own_) && entry.process.number != own_.number;
  entry.absence->begin(timeout_, watched ? std::optional(entry.process) : std::nullopt);
  return true;
}

std::shared_ptr<Session> Sessions::close(const AgentId& life) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(life);
  return found == entries_.end() ? nullptr : remove(found);
}

std::shared_ptr<Session> Sessions::remove(std::map<AgentId, Entry>::iterator found) {
  Entry entry = std::move(found->second);
  end_absence(entry);
  const std::uint64_t incarnation = found->first.incarnation;
  entries_.erase(found);
  if (entry.session == nullptr) {
    names_.erase(incarnation);
    return nullptr;
  }
  const bool used = entry.session->used();
  auto& over = used ? over_used_ : over_unused_;
  over.push_back(incarnation);
  if (over.size() > (used ? max_lost_remembered : max_over_unused)) {
    names_.erase(over.front());
    over.pop_front();
  }
  return entry.session;
}

// An incarnation that is known, but neither connected nor absent, is gone.
bool Sessions::is_over(const AgentId& life) const {
  const auto known = names_.find(life.incarnation);
  return known != names_.end() && known->second == life.name && !entries_.contains(life);
}

std::optional<AgentId> Sessions::agent_of(std::uint64_t incarnation) const {
  if (incarnation == self_.incarnation) return self_;
  MutexLock lock(mutex_);
  const auto known = names_.find(incarnation);
  return known == names_.end() ? std::nullopt : std::optional(AgentId{known->second, incarnation});
}

void Sessions::end_absence(Entry& entry) {
  if (const auto absence = std::exchange(entry.absence, nullptr)) absence->finish();
  if (auto* number = std::exchange(entry.counted_in, nullptr)) --*number;
}

void Sessions::give_up(const AgentId& life, const Absence& absence, const Error& reason) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(life);
    // The peer has connected again.
    if (found == entries_.end() || found->second.absence.get() != &absence) return;
    session = remove(found);
  }
  gone_(session, reason);
}

std::shared_ptr<Session> Sessions::find(const AgentId& life) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(life);
  return found == entries_.end() ? nullptr : found->second.session;
}

bool Sessions::is_absent(const AgentId& life) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(life);
  return found != entries_.end() && found->second.absence != nullptr;
}

bool Sessions::is_gone(const AgentId& life) const {
  MutexLock lock(mutex_);
  return is_over(life);
}

std::vector<AgentId> Sessions::absent(const std::string& name) const {
  std::vector<AgentId> lives;
  MutexLock lock(mutex_);
  for (auto entry = entries_.lower_bound(AgentId{name, 0});
       entry != entries_.end() && entry->first.name == name; ++entry)
    if (entry->second.absence != nullptr) lives.push_back(entry->first);
  return lives;
}

bool Sessions::is_absent_on_this_host(const std::string& name) const {
  const auto lives = absent(name);
  MutexLock lock(mutex_);
  return std::any_of(lives.begin(), lives.end(), [this](const AgentId& life) WEFT_REQUIRES(mutex_) {
    const auto found = entries_.find(life);
    return found != entries_.end() && found->second.process.shares_network_of(own_);
  });
}

std::vector<std::shared_ptr<Session>> Sessions::all() const {
  std::vector<std::shared_ptr<Session>> sessions;
  MutexLock lock(mutex_);
  sessions.reserve(entries_.size());
  for (const auto& [life, entry] : entries_)
    if (entry.session != nullptr) sessions.push_back(entry.session);
  return sessions;
}

std::vector<std::shared_ptr<Session>> Sessions::close_all() {
  std::vector<std::shared_ptr<Session>> sessions;
  MutexLock lock(mutex_);
  for (auto& [life, entry] : entries_) {
    end_absence(entry);
    if (entry.session != nullptr) sessions.push_back(entry.session);
  }
  entries_.clear();
  return sessions;
}

}  // namespace weft::rpc
