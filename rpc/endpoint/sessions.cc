#include <weft/rpc/endpoint/sessions.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/endpoint/agent_core.h>

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
constexpr std::size_t max_absent_used = 16384, max_absent_unused = 1024;
// More bytes than a healthy peer leaves unacknowledged (session.cc).
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
  Absence(std::weak_ptr<Sessions> sessions, AgentId peer, std::shared_ptr<Loop> loop, std::string lost)
      : sessions_(std::move(sessions)),
        peer_(std::move(peer)),
        loop_(std::move(loop)),
        lost_(std::move(lost)) {}

  void begin(std::chrono::nanoseconds timeout, const std::optional<ProcessId>& process) {
    loop_->dispatch([self = shared_from_this(), timeout, process] {
      if (self->over_) return;
      self->timer_ = self->loop_->schedule(later(self->loop_->now(), timeout), [self, timeout] {
        self->timer_ = 0;
        self->give_up("it did not connect again within " + seconds_text(timeout) + " (Heartbeat::timeout)");
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
      sessions->give_up(peer_, *this, Error(ErrorKind::peer_lost, lost_ + "; " + why));
  }
  void stop() {
    over_ = true;
    if (timer_ != 0) loop_->cancel(std::exchange(timer_, 0));
    process_.reset();
  }

  const std::weak_ptr<Sessions> sessions_;
  const AgentId peer_;
  const std::shared_ptr<Loop> loop_;
  const std::string lost_;  // how the last connection of the peer ended
  bool over_ = false;
  Loop::TimerId timer_ = 0;
  std::optional<asio::posix::stream_descriptor> process_;
};

Sessions::Sessions(AgentCore& core, std::uint64_t id_seed, ProcessId own)
    : core_(core),
      timeout_(core.options().heartbeat.timeout),
      self_(core.id()),
      id_seed_(id_seed),
      max_kept_total_(std::max(core.options().limits.in_flight_total, min_kept)),
      own_(own) {}

std::shared_ptr<Session> Sessions::open(const AgentId& peer, const std::string& identity,
                                        const ProcessId& process, bool is_kept, const Make& make) {
  MutexLock lock(mutex_);
  const std::string* owner = name_of(peer.incarnation);
  if (owner != nullptr && *owner != peer.name)
    throw Error(ErrorKind::permission_denied, "'" + peer.name + "' states the incarnation of '" + *owner +
                                                  "', expected an incarnation of its own");
  if (peer == self_) return with_itself_.emplace_back(make(++last_number_));
  const auto found = entries_.find(peer);
  if (found == entries_.end()) {
    auto session = make(++last_number_);
    names_.emplace(peer.incarnation, peer.name);
    entries_.emplace(peer, Entry{session, identity, process});
    return session;
  }
  Entry& entry = found->second;
  if (!may_be_the_same(entry.identity, identity))
    throw Error(ErrorKind::permission_denied,
                to_string(peer) + " has proved the identity '" + entry.identity + "', but now proves " +
                    (identity.empty() ? "none" : "'" + identity + "'") + ", expected the same identity");
  if (entry.session->is_kept() != is_kept)
    throw Error(ErrorKind::protocol_error, to_string(peer) + " has stated other features before");
  if (!identity.empty()) entry.identity = identity;
  if (is_kept) return entry.session;
  note_end(*entry.session);
  return entry.session = make(++last_number_);
}

bool Sessions::connected(const Session& session) {
  MutexLock lock(mutex_);
  if (session.peer() == self_) return true;
  const auto found = entry_of(session);
  if (found == entries_.end()) return false;
  end_absence(found->second);
  return true;
}

bool Sessions::begin_absence(const Session& session, const Error& reason, const std::shared_ptr<Loop>& loop) {
  MutexLock lock(mutex_);
  const auto found = entry_of(session);
  if (found == entries_.end() || timeout_.count() <= 0) return false;
  Entry& entry = found->second;
  if (entry.absence != nullptr) return true;
  const bool used = session.was_used();
  std::size_t& number = used ? absent_used_ : absent_unused_;
  if (number == (used ? max_absent_used : max_absent_unused)) return false;
  // Other peers do not pay for those that keep much.
  if (keeps_too_much() && session.kept_bytes() > min_kept) return false;
  ++number;
  entry.counted_in = &number;
  entry.absence = std::make_shared<Absence>(weak_from_this(), session.peer(), loop, reason.what());
  const bool watched = entry.process.is_on_host_of(own_) && entry.process.number != own_.number;
  entry.absence->begin(timeout_, watched ? std::optional(entry.process) : std::nullopt);
  return true;
}

std::shared_ptr<Session> Sessions::close(const AgentId& peer) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(peer);
  return found == entries_.end() ? nullptr : remove(found);
}

bool Sessions::close(const Session& session) {
  MutexLock lock(mutex_);
  const auto own = std::find_if(with_itself_.begin(), with_itself_.end(),
                                [&](const auto& one) { return one.get() == &session; });
  if (own != with_itself_.end()) {
    note_end(session);
    with_itself_.erase(own);
    return false;
  }
  const auto found = entry_of(session);
  if (found == entries_.end()) return false;
  remove(found);
  return true;
}

Sessions::Entries::iterator Sessions::entry_of(const Session& session) {
  const auto found = entries_.find(session.peer());
  return found != entries_.end() && found->second.session.get() == &session ? found : entries_.end();
}

void Sessions::note_end(const Session& session) {
  requests_of_ended_ += session.requests_sent() + session.requests_received();
}

std::shared_ptr<Session> Sessions::remove(std::map<AgentId, Entry>::iterator found) {
  Entry entry = std::move(found->second);
  end_absence(entry);
  note_end(*entry.session);
  std::erase_if(closed_, [](const auto& closed) { return closed.expired(); });
  closed_.push_back(entry.session);
  const AgentId peer = found->first;
  entries_.erase(found);
  names_.erase(peer.incarnation);
  // What a peer without kept sessions may have said ends with its connection.
  if (entry.session->is_kept() && over_name_of(peer.incarnation) == nullptr)
    (entry.session->was_used() ? over_used_ : over_unused_).add(peer.incarnation, peer.name);
  return entry.session;
}

const std::string* Sessions::over_name_of(std::uint64_t incarnation) const {
  const auto* used = over_used_.find(incarnation);
  return used != nullptr ? used : over_unused_.find(incarnation);
}

const std::string* Sessions::name_of(std::uint64_t incarnation) const {
  if (incarnation == self_.incarnation) return &self_.name;
  const auto known = names_.find(incarnation);
  return known != names_.end() ? &known->second : over_name_of(incarnation);
}

std::optional<AgentId> Sessions::agent_of(std::uint64_t incarnation) const {
  MutexLock lock(mutex_);
  const auto* name = name_of(incarnation);
  return name == nullptr ? std::nullopt : std::optional(AgentId{*name, incarnation});
}

void Sessions::end_absence(Entry& entry) {
  if (const auto absence = std::exchange(entry.absence, nullptr)) absence->finish();
  if (auto* number = std::exchange(entry.counted_in, nullptr)) --*number;
}

void Sessions::give_up(const AgentId& peer, const Absence& absence, const Error& reason) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(peer);
    // The peer has connected again.
    if (found == entries_.end() || found->second.absence.get() != &absence) return;
    session = remove(found);
  }
  if (const auto core = core_.weak_from_this().lock()) core->end_session(session, reason, true);
}

std::shared_ptr<Session> Sessions::find(const AgentId& peer) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(peer);
  return found == entries_.end() ? nullptr : found->second.session;
}

std::shared_ptr<Session> Sessions::latest(const std::string& name) const {
  std::shared_ptr<Session> latest;
  MutexLock lock(mutex_);
  for (const auto& [peer, entry] : named(name))
    if (latest == nullptr || entry.session->number() > latest->number()) latest = entry.session;
  return latest;
}

bool Sessions::is_connected(const AgentId& peer) const {
  const auto session = find(peer);
  return session != nullptr && session->is_connected();
}

bool Sessions::is_absent(const AgentId& peer) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(peer);
  return found != entries_.end() && found->second.absence != nullptr;
}

bool Sessions::is_gone(const AgentId& peer) const {
  MutexLock lock(mutex_);
  const auto* name = over_name_of(peer.incarnation);
  return name != nullptr && *name == peer.name;
}

std::vector<AgentId> Sessions::absent(const std::string& name) const {
  std::vector<AgentId> peers;
  MutexLock lock(mutex_);
  for (const auto& [peer, entry] : named(name))
    if (entry.absence != nullptr) peers.push_back(peer);
  return peers;
}

bool Sessions::is_absent_on_this_host(const std::string& name) const {
  MutexLock lock(mutex_);
  return std::ranges::any_of(named(name), [this](const auto& one) {
    return one.second.absence != nullptr && one.second.process.shares_network_of(own_);
  });
}

Sessions::Requests Sessions::requests_with(const std::set<std::string>& names) const {
  Requests requests;
  const auto add = [&](const Session& session) {
    const std::uint64_t sent = session.requests_sent(), received = session.requests_received();
    requests.ever += sent + received;
    if (!names.contains(session.peer().name)) return;
    requests.sent += sent;
    requests.received += received;
  };
  MutexLock lock(mutex_);
  requests.ever = requests_of_ended_;
  for (const auto& [peer, entry] : entries_) add(*entry.session);
  for (const auto& session : with_itself_) add(*session);
  return requests;
}

std::vector<std::shared_ptr<Session>> Sessions::all() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Session>> sessions = with_itself_;
  for (const auto& [peer, entry] : entries_) sessions.push_back(entry.session);
  return sessions;
}

std::vector<std::shared_ptr<Session>> Sessions::all_alive() const {
  auto sessions = all();
  MutexLock lock(mutex_);
  for (const auto& closed : closed_)
    if (auto session = closed.lock()) sessions.push_back(std::move(session));
  return sessions;
}

void Sessions::clear() {
  Entries entries;  // destroyed without the mutex, like `own`
  std::vector<std::shared_ptr<Session>> own;
  MutexLock lock(mutex_);
  for (auto& [peer, entry] : entries_) end_absence(entry);
  entries.swap(entries_);
  own.swap(with_itself_);
}

}  // namespace weft::rpc
