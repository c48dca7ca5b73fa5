// GroupCore: how a group ends for all its members: deaths, leaves, aborts, deadlines.
#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/parallel/collectives/internal/group/group_notices.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::collectives {
namespace {

std::string seconds_text(std::chrono::nanoseconds time) {
  std::string text = std::to_string(std::chrono::duration<double>(time).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

void GroupCore::abort(const std::string& reason) {
  in_turn([self = shared_from_this(), reason] {
    self->fail_all(rpc::Error(rpc::ErrorKind::aborted, self->prefix() + reason), true);
    self->abort_splits(reason);
  });
}

void GroupCore::add_split(const std::shared_ptr<GroupCore>& group) {
  in_turn([self = shared_from_this(), group] {
    if (self->aborted_) return group->abort(*self->aborted_);
    std::erase_if(self->splits_, [](const auto& split) { return split.expired(); });
    self->splits_.push_back(group);
  });
}

// Aborts the groups that were split from this group. Other ranks may wait in such a group, even if the rank
// that aborts this group is not a member of it.
void GroupCore::abort_splits(const std::string& reason) {
  aborted_ = reason;
  for (const auto& split : std::exchange(splits_, {}))
    if (const auto group = split.lock()) group->abort(reason);
}

void GroupCore::fail(const rpc::Error& error) {
  in_turn([self = shared_from_this(), error] {
    const bool named = std::string_view(error.what()).starts_with(self->prefix());
    self->fail_all(rpc::Error(error.kind(), named ? error.what() : self->prefix() + error.what()), true);
  });
}

void GroupCore::fail(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    fail(known);
  } catch (...) {
    fail(rpc::Error(rpc::ErrorKind::internal, core_->hooks().text_of(error)));
  }
}

rpc::Future<void> GroupCore::leave() {
  rpc::Promise<void> promise;
  auto future = promise.future();
  in_turn([self = shared_from_this(), promise = std::move(promise)]() mutable {
    promise.complete(rpc::capture([&] { self->leave_now(); }));
  });
  return future;
}

void GroupCore::leave_now() {
  if (ended_) return;
  const rpc::Error error(rpc::ErrorKind::shut_down, prefix() + describe(rank_) + " has left");
  const bool idle = running_.empty() && !devices_.busy();
  if (idle) tell_others<&GroupService::left>(id_);
  fail_all(error, !idle, false);
}

void GroupCore::end() {
  turns_.run([self = shared_from_this()] {
    self->fail_all(rpc::Error(rpc::ErrorKind::shut_down, self->prefix() + "this agent has ended"), false,
                   false);
    self->fail_futures();  // without waiting for files
  });
}

void GroupCore::failed(const rpc::AgentId& from, rpc::ErrorKind kind, std::string text) {
  if (rank_of(from) < 0) return;
  turns_.run([self = shared_from_this(), error = rpc::Error(kind, std::move(text))] {
    self->fail_all(error, false);
    if (error.kind() == rpc::ErrorKind::aborted) self->abort_splits(error.what());
  });
}

void GroupCore::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  const int rank = rank_of(peer);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank, reason] {
    if (reason.kind() != rpc::ErrorKind::shut_down)
      return self->fail_all(rpc::Error(rpc::ErrorKind::peer_lost,
                                       self->prefix() + self->describe(rank) + " was lost: " + reason.what()),
                            true);
    self->has_left(rank);
  });
}

void GroupCore::job_failed(const rpc::Error& error) {
  turns_.run([self = shared_from_this(), error] {
    self->fail_all(rpc::Error(error.kind(), self->prefix() + error.what()), false);
  });
}

void GroupCore::left(const rpc::AgentId& from) {
  const int rank = rank_of(from);
  if (rank < 0) return;
  turns_.run([self = shared_from_this(), rank] { self->has_left(rank); });
}

void GroupCore::has_left(int rank) {
  left_.insert(rank);
  devices_.has_left(rpc::Error(rpc::ErrorKind::shut_down, prefix() + describe(rank) + " has left"));
  backend_->member_left();
  if (is_awaited(rank))
    fail_all(rpc::Error(rpc::ErrorKind::shut_down,
                        prefix() + describe(rank) + " left before all operations had completed"),
             true);
}

bool GroupCore::is_awaited(int rank) const {
  if (mailbox_.awaits(rank) || values_.awaits(rank)) return true;
  if (std::any_of(sent_.begin(), sent_.end(), [&](const auto& entry) { return entry.second.to == rank; }))
    return true;
  return std::any_of(running_.begin(), running_.end(),
                     [&](const auto& entry) { return entry.second->awaits(rank); });
}

void GroupCore::fail_all(const rpc::Error& error, bool tell, bool write) {
  if (ended_) return;
  ended_ = error;
  early_.clear();
  // Dumps are taken before any member is notified of the failure, and written afterwards, because files may
  // be slow. They include all groups of this agent, because one group may wait for another.
  std::vector<rpc::Future<Snapshot>> snapshots;
  if (write) {
    if (!options_.flight_recorder_dir.empty())
      snapshots.push_back(rpc::Future<Snapshot>::made(rpc::capture([&] { return snapshot(); })));
    for (const auto& other : CollectivesLayer::of(*core_)->all())
      if (other.get() != this && !other->options_.flight_recorder_dir.empty())
        snapshots.push_back(other->take_snapshot());
  }
  if (tell) tell_others<&GroupService::failed>(id_, error.kind(), std::string(error.what()));
  devices_.end(error);
  backend_->stop();
  for (auto& [sequence, exchange] : std::exchange(running_, {})) {
    if (exchange->in_use && !exchange->disagrees) continue;  // its backend reports its end
    exchange->close();
    failing_.push_back(exchange);
  }
  if (snapshots.empty()) return fail_futures();
  writing_ = true;
  rpc::when_all(std::move(snapshots))
      .then([self = shared_from_this()](rpc::Result<std::vector<Snapshot>>&& taken) {
        CollectivesLayer::of(*self->core_)->write([self, taken = std::move(taken)]() mutable {
          if (taken.ok())
            for (const Snapshot& each : taken.value()) each.group->write_flight(each.dump);
          // Futures complete on the loop, not on the thread for files.
          self->loop_->post([self] { self->turns_.run([self] { self->fail_futures(); }); });
        });
      });
}

// The program may exit when a future fails, so futures wait for the dumps.
void GroupCore::fail_futures() {
  writing_ = false;
  const rpc::Error& error = *ended_;
  for (const ExchangePtr& exchange : std::exchange(failing_, {})) fail_one(*exchange, error);
  mailbox_.fail(error);
  values_.fail(error);
  for (auto& [round, given] : std::exchange(given_, {})) {
    if (given.ticket) recorder_.failed(*given.ticket, error.what());
    given.promise.fail(error);
  }
  for (auto& [number, sent] : std::exchange(sent_, {})) {
    recorder_.failed(sent.ticket, error.what());
    sent.promise.fail(error);
  }
  for (LaunchSequence::Begin& begin : launches_.take_all()) begin(std::make_exception_ptr(error));
  for (rpc::Callback& job : std::exchange(after_dumps_, {})) job();
}

void GroupCore::after_dumps(rpc::Callback job) {
  in_turn([self = shared_from_this(), job = std::move(job)]() mutable {
    self->writing_ ? self->after_dumps_.push_back(std::move(job)) : job();
  });
}

void GroupCore::fail_written(const ExchangePtr& exchange) {
  writing_ ? failing_.push_back(exchange) : fail_one(*exchange, *ended_);
}

// --- Operations in flight when the group ended ---

void GroupCore::note_end(FlightRecorder::Ticket ticket, const std::exception_ptr& error) {
  error == nullptr ? recorder_.done(ticket) : recorder_.failed(ticket, core_->hooks().text_of(error));
}

FlightDump GroupCore::flight() const {
  FlightDump dump = FlightDump::here();
  dump.origin = id_.origin;
  dump.number = id_.number;
  dump.group = name();
  dump.rank = rank_;
  for (const rpc::AgentId& member : members_) dump.members.push_back(member.name);
  dump.records = recorder_.records();
  return dump;
}

void GroupCore::note_awaited() {
  turns_.run_first([self = shared_from_this()] { self->record_awaited(); }, *loop_, shared_from_this());
}

GroupCore::Snapshot GroupCore::snapshot() {
  record_awaited();
  Snapshot taken{shared_from_this(), flight()};
  if (ended_) taken.dump.error = ended_->what();
  return taken;
}

rpc::Future<GroupCore::Snapshot> GroupCore::take_snapshot() {
  rpc::Promise<Snapshot> promise;
  auto future = promise.future();
  turns_.run_first(
      [self = shared_from_this(), promise = std::move(promise)]() mutable {
        promise.complete(rpc::capture([&] { return self->snapshot(); }));
      },
      *loop_, shared_from_this());
  return future;
}

// Two failures may take dumps of one group in one order and write them in the other order: the dump that is
// written last remains. If a file cannot be written, the group's error does not change.
void GroupCore::write_flight(const FlightDump& dump) {
  if (dump.records.taken < written_) return;
  written_ = dump.records.taken;
  (void)rpc::capture([&] { return write_flight_dump(options_.flight_recorder_dir, dump); });
}

// If a member cannot be reached, it is lost, even if the failed message is the first sign of the loss. In a
// job of fixed size, the job's failure may name another member as the lost one.
void GroupCore::not_sent(int to, const std::exception_ptr& error) {
  if (const auto job = core_->job_error())
    return fail_all(rpc::Error(job->kind(), prefix() + job->what()), true);
  rpc::ErrorKind kind = rpc::ErrorKind::internal;
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    // If a member leaves its job, it has announced this before; if its agent only ends, the member is lost.
    const bool gone =
        known.kind() == rpc::ErrorKind::unavailable || known.kind() == rpc::ErrorKind::shut_down;
    kind = gone ? rpc::ErrorKind::peer_lost : known.kind();
  } catch (...) {
  }
  const std::string text = kind == rpc::ErrorKind::peer_lost
                               ? describe(to) + " was lost: a message to it failed: "
                               : "a message to " + describe(to) + " failed: ";
  fail_all(rpc::Error(kind, prefix() + text + core_->hooks().text_of(error)), true);
}

// --- Deadlines ---

// Only the earliest deadline has a timer. Its job checks all deadlines, and schedules the next one.
void GroupCore::arm(rpc::Clock::time_point when) {
  if (when == rpc::Clock::time_point::max() || (armed_ && *armed_ <= when)) return;
  armed_ = when;
  loop_->post([weak = weak_from_this(), loop = std::weak_ptr(loop_), when] {
    const auto here = loop.lock();
    if (here == nullptr) return;
    here->schedule(when, [weak] {
      if (const auto self = weak.lock()) self->turns_.run([self] { self->look_at_deadlines(); });
    });
  });
}

void GroupCore::look_at_deadlines() {
  armed_.reset();
  const rpc::Clock::time_point now = loop_->now();
  std::optional<rpc::Clock::time_point> next;
  for (const auto& [sequence, exchange] : std::map(running_)) {
    if (exchange->warns_at <= now) warn(*exchange);
    if (exchange->deadline > now) {
      const auto soonest = std::min(exchange->deadline, exchange->warns_at);
      next = next ? std::min(*next, soonest) : soonest;
    } else if (!std::exchange(exchange->asking, true)) {
      ask_who_is_missing(exchange);
    }
  }
  const auto too_late = [&](const std::string& what) {
    fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                        prefix() + describe(rank_) + ": " + what + " did not complete in time"),
             true);
  };
  if (const auto* receive = mailbox_.overdue(now)) return too_late(std::string(receive->what));
  for (const auto& [number, sent] : sent_)
    if (sent.deadline <= now) return too_late(std::string(sent.what));
  if (const auto overdue = values_.overdue(now)) {
    std::string who;
    for (const int rank : overdue->missing)
      who += (who.empty() ? "" : ", ") + describe(rank) + " has not begun it";
    return fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                               prefix() + overdue->what + " did not complete in time: " + who),
                    true);
  }
  for (const auto& [round, given] : given_) {
    if (rank_ == 0) break;
    if (given.deadline <= now)
      return fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                                 prefix() + given.what + " did not complete in time: " + describe(0) +
                                     " does not answer"),
                      true);
    next = next ? std::min(*next, given.deadline) : given.deadline;
  }
  if (const auto deadline = values_.next_deadline()) next = next ? std::min(*next, *deadline) : deadline;
  if (const auto deadline = mailbox_.next_deadline()) next = next ? std::min(*next, *deadline) : deadline;
  for (const auto& [number, sent] : sent_) next = next ? std::min(*next, sent.deadline) : sent.deadline;
  if (next) arm(*next);
}

// A rank that calls a collective alone, for example in evaluation on rank 0, would wait for the timeout.
void GroupCore::warn(Exchange& exchange) const {
  exchange.warns_at = rpc::Clock::time_point::max();
  if (exchange.closed) return;
  std::string who;
  for (const int rank : awaited_by(exchange)) who += (who.empty() ? "" : ", ") + describe(rank);
  if (who.empty()) return;
  core_->log().write(rpc::LogLevel::warning, prefix() + exchange.text() + " has waited for " +
                                                 seconds_text(options_.stall_warning) + " for " + who +
                                                 ": all ranks must call it");
}

// Asks all members. A member that does not reply soon also counts as missing.
void GroupCore::ask_who_is_missing(const ExchangePtr& exchange) {
  struct Answers {
    std::size_t open;
    std::map<int, std::string> missing;
  };
  const auto answers = std::make_shared<Answers>(Answers{members_.size(), {}});
  const auto answered = [self = shared_from_this(), exchange, answers](int rank, const char* fault) {
    if (fault != nullptr) answers->missing[rank] = self->describe(rank) + " " + fault;
    if (--answers->open != 0 || !self->running_.contains(exchange->sequence())) return;
    std::string who;
    for (const auto& [missing, text] : answers->missing) who += (who.empty() ? "" : ", ") + text;
    if (who.empty()) who = "all ranks have begun it";
    self->fail_all(rpc::Error(rpc::ErrorKind::deadline_exceeded,
                              self->prefix() + exchange->text() + " did not complete within " +
                                  seconds_text(self->limit_of(*exchange)) + ": " + who),
                   true);
  };
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) {
      answered(rank, nullptr);
      continue;
    }
    peers_[static_cast<std::size_t>(rank)]
        .with({.timeout = timeout_for_answers})
        .template call<&GroupService::standing>(id_, exchange->sequence())
        .then([self = shared_from_this(), answered, rank](rpc::Result<bool>&& begun) {
          const char* const fault = !begun.ok()     ? "does not answer"
                                    : begun.value() ? nullptr
                                                    : "has not begun it";
          self->turns_.run([answered, rank, fault] { answered(rank, fault); });
        });
  }
}

}  // namespace weft::collectives
