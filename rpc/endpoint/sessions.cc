#include <weft/rpc/endpoint/sessions.h>

#include <weft/rpc/core/asio_loop.h>

#include <asio/posix/stream_descriptor.hpp>

#include <poll.h>

#include <algorithm>
#include <optional>

namespace weft::rpc {
namespace {

// Limits of the memory that peers with invented names can use.
constexpr std::size_t max_absent_unused = 1024, max_over_unused = 4096;
// More bytes than a healthy peer leaves unacknowledged (link_session.cc).
constexpr std::uint64_t min_kept = std::uint64_t{8} << 20;

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

Sessions::Sessions(const AgentOptions& options, std::uint64_t id_seed, ProcessId own, Gone gone)
    : timeout_(options.heartbeat.timeout),
      id_seed_(id_seed),
      max_kept_(std::max(options.limits.in_flight, min_kept)),
      own_(own),
      gone_(std::move(gone)) {}

Sessions::~Sessions() = default;

std::shared_ptr<Session> Sessions::open(const AgentId& life, const ProcessId& process) {
  MutexLock lock(mutex_);
  if (over_.contains(life.incarnation)) return nullptr;
  Entry& entry = entries_[life];
  if (entry.session == nullptr) entry.session = std::make_shared<Session>(life, id_seed_, max_kept_);
  entry.process = process;
  end_absence(entry);
  return entry.session;
}

bool Sessions::begin_absence(const AgentId& life, const Error& reason, const std::shared_ptr<Loop>& loop) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(life);
  if (found == entries_.end() || timeout_.count() <= 0) return false;
  Entry& entry = found->second;
  if (!entry.session->used()) {
    if (absent_unused_ == max_absent_unused) return false;
    ++absent_unused_;
    entry.counted = true;
  }
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
  over_.insert(incarnation);
  if (!entry.session->used()) over_unused_.push_back(incarnation);
  if (over_unused_.size() > max_over_unused) {
    over_.erase(over_unused_.front());
    over_unused_.pop_front();
  }
  entries_.erase(found);
  return entry.session;
}

void Sessions::end_absence(Entry& entry) {
  if (const auto absence = std::exchange(entry.absence, nullptr)) absence->finish();
  if (std::exchange(entry.counted, false)) --absent_unused_;
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
  return over_.contains(life.incarnation);
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
  for (const auto& [life, entry] : entries_) sessions.push_back(entry.session);
  return sessions;
}

std::vector<std::shared_ptr<Session>> Sessions::close_all() {
  std::vector<std::shared_ptr<Session>> sessions;
  MutexLock lock(mutex_);
  for (auto& [life, entry] : entries_) {
    end_absence(entry);
    sessions.push_back(entry.session);
  }
  entries_.clear();
  return sessions;
}

}  // namespace weft::rpc
