#include <weft/rpc/job/store/internal/etcd_watch.h>

#include <weft/rpc/core/while_alive.h>

namespace weft::rpc::detail {
namespace {

constexpr auto reopen_pause = std::chrono::milliseconds{50};
constexpr int checks_before_closing = 3;
constexpr int checks_before_reopening = 6;  // of a silent stream; twice the timeout

}  // namespace

EtcdWatch::EtcdWatch(std::shared_ptr<Loop> loop, EtcdClient& client, std::string prefix,
                     std::chrono::nanoseconds timeout)
    : loop_(std::move(loop)), client_(client), prefix_(std::move(prefix)), timeout_(timeout) {}

Future<void> EtcdWatch::open() {
  if (stage_ == Stage::open) return Future<void>::made(Result<void>{});
  Promise<void> promise(loop_);
  auto future = promise.future();
  openers_.push_back(std::move(promise));
  if (stage_ == Stage::closed) {
    give_up_ = loop_->now() + timeout_;
    begin(0);
  }
  return future;
}

void EtcdWatch::wait(const std::shared_ptr<StoreWait>& wait) {
  StoreTable::Jobs jobs;
  copy_.wait(wait, jobs);
  for (Callback& job : jobs) job();
}

// from: the first revision of interest; 0: the next one.
void EtcdWatch::begin(std::uint64_t from) {
  stage_ = Stage::opening;
  const std::uint64_t turn = ++turn_;
  stream_ = client_.watch(prefix_, from, give_up_,
                          while_alive(this,
                                      [turn, from](EtcdWatch& self, EtcdEvents&& events) {
                                        if (self.turn_ == turn) self.on_events(std::move(events), from);
                                      }),
                          while_alive(this, [turn](EtcdWatch& self, const Error& reason) {
                            if (self.turn_ == turn) self.on_ended(reason);
                          }));
}

void EtcdWatch::on_events(EtcdEvents&& events, std::uint64_t from) {
  heard_ = true;
  // The revisions were compacted; or this is another etcd than before, with lower revisions.
  if (events.missed || (events.created && events.version + 1 < from)) {
    stop();
    give_up_ = loop_->now() + timeout_;
    return begin(0);
  }
  StoreTable::Jobs jobs;
  if (events.created) {
    if (from == 0) copy_.restart(last_ = events.version, jobs);
    stage_ = Stage::open;
    idle_checks_ = silent_checks_ = 0;
    watch_over();
    for (auto& opener : std::exchange(openers_, {})) opener.complete(Result<void>{});
  }
  if (!events.changes.empty() && events.version > last_) {
    std::vector<StoreTable::Change> changes;
    changes.reserve(events.changes.size());
    for (EtcdEntry& change : events.changes)
      changes.push_back({change.key.substr(prefix_.size()), std::move(change.value)});
    copy_.mirror(last_ = events.version, std::move(changes), jobs);
  }
  for (Callback& job : jobs) job();
}

void EtcdWatch::on_ended(const Error& reason) {
  const auto now = loop_->now();
  const bool was_open = stage_ == Stage::open;
  stop();
  if (reason.kind() == ErrorKind::shut_down || (copy_.waits() == 0 && openers_.empty())) return fail(reason);
  if (was_open) give_up_ = now + timeout_;
  if (reason.kind() != ErrorKind::unavailable || now + reopen_pause >= give_up_) return fail(reason);
  stage_ = Stage::opening;
  timer_ = loop_->schedule(now + reopen_pause, while_alive(this, [](EtcdWatch& self) {
                             self.timer_ = 0;
                             self.begin(self.last_ == 0 ? 0 : self.last_ + 1);
                           }));
}

// A server that no longer answers does not close the stream. So it is probed if the stream is silent. The
// probe uses another connection: the stream's own may have been dropped by a NAT or a load balancer, which
// tells neither end. So a stream that stays silent is reopened at its revision, and etcd repeats what was
// lost.
void EtcdWatch::watch_over() {
  if (timer_ != 0) loop_->cancel(timer_);
  timer_ = loop_->schedule(
      loop_->now() + timeout_ / 3, while_alive(this, [](EtcdWatch& self) {
        self.timer_ = 0;
        if (self.copy_.waits() != 0) {
          self.idle_checks_ = 0;
        } else if (++self.idle_checks_ == checks_before_closing) {
          self.stop();
          self.last_ = 0;
          return;
        }
        if (std::exchange(self.heard_, false)) {
          self.silent_checks_ = 0;
          return self.watch_over();
        }
        if (++self.silent_checks_ == checks_before_reopening)
          return self.on_ended(Error(ErrorKind::unavailable, "the watch has been silent"));
        self.client_.probe(self.stream_, self.prefix_, self.loop_->now() + self.timeout_ / 3)
            .then(while_alive(&self, [turn = self.turn_](EtcdWatch& watch, Result<void>&& alive) {
              if (watch.turn_ != turn) return;
              if (alive.ok()) return watch.watch_over();
              watch.on_ended(Error(ErrorKind::unavailable, "the server of the watch does not answer"));
            }));
      }));
}

void EtcdWatch::stop() {
  ++turn_;
  stage_ = Stage::closed;
  client_.stop(stream_);
  if (timer_ != 0) loop_->cancel(std::exchange(timer_, 0));
}

void EtcdWatch::fail(const Error& reason) {
  last_ = 0;
  for (const auto& wait : copy_.take_all()) wait->fail(reason);
  for (auto& opener : std::exchange(openers_, {})) opener.fail(reason);
}

void EtcdWatch::close(const Error& reason) {
  stop();
  fail(reason);
}

}  // namespace weft::rpc::detail
