#include <weft/parallel/collectives/internal/group/group_failure.h>

#include <algorithm>

namespace weft::collectives {

void GroupFailure::abort(const std::string& reason) {
  group_.run_one([this, alive = group_.shared_from_this(), reason] {
    fail_now(rpc::ErrorKind::aborted, reason);
    abort_splits(reason);
  });
}

void GroupFailure::add_split(const std::shared_ptr<GroupFailure>& split) {
  group_.run_one([this, alive = group_.shared_from_this(), split] {
    if (aborted_) return split->abort(*aborted_);
    std::erase_if(splits_, [](const auto& one) { return one.expired(); });
    splits_.push_back(split);
  });
}

// Aborts the groups that were split from this group. Other ranks may wait in such a group, even if the rank
// that aborts this group is not a member of it.
void GroupFailure::abort_splits(const std::string& reason) {
  aborted_ = reason;
  for (const auto& weak : std::exchange(splits_, {}))
    if (const auto split = weak.lock()) split->abort(reason);
}

void GroupFailure::fail(const rpc::Error& error) {
  group_.run_one([this, alive = group_.shared_from_this(), error] {
    const bool named = std::string_view(error.what()).starts_with(group_.prefix());
    named ? fail_now(rpc::Error(error.kind(), error.what())) : fail_now(error.kind(), error.what());
  });
}

void GroupFailure::fail(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    fail(known);
  } catch (...) {
    fail(rpc::Error(rpc::ErrorKind::internal, group_.text_of(error)));
  }
}

rpc::Future<void> GroupFailure::leave() {
  rpc::Promise<void> promise;
  auto future = promise.future();
  group_.run_one([this, alive = group_.shared_from_this(), promise = std::move(promise)]() mutable {
    promise.complete(rpc::capture([&] { leave_now(); }));
  });
  return future;
}

void GroupFailure::leave_now() {
  if (ended_) return;
  const bool idle = std::none_of(parts_.begin(), parts_.end(), [](const auto* part) { return part->busy(); });
  std::uint64_t completed = 0;
  for (const GroupPart* const part : parts_) completed = std::max(completed, part->begun());
  if (idle) notify_others<&GroupService::left>(group_.id(), completed);
  fail_now(group_.error(rpc::ErrorKind::shut_down, group_.describe(group_.rank()) + " has left"), !idle,
           false);
}

void GroupFailure::end() {
  group_.run([this, alive = group_.shared_from_this()] {
    fail_now(group_.error(rpc::ErrorKind::shut_down, "this agent has ended"), false, false);
    fail_futures();  // without waiting for files
  });
}

void GroupFailure::failed_elsewhere(rpc::ErrorKind kind, std::string text) {
  group_.run([this, alive = group_.shared_from_this(), error = rpc::Error(kind, std::move(text))] {
    fail_now(error, false);
    if (error.kind() == rpc::ErrorKind::aborted) abort_splits(error.what());
  });
}

void GroupFailure::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  const int rank = group_.rank_of(peer);
  if (rank < 0) return;
  if (reason.kind() == rpc::ErrorKind::shut_down) return left(rank, 0);
  group_.run([this, alive = group_.shared_from_this(), rank, reason] {
    if (left_.contains(rank)) return;  // how its agent ends does not matter any more
    fail_now(rpc::ErrorKind::peer_lost, group_.describe(rank) + " was lost: " + reason.what());
  });
}

void GroupFailure::job_failed(const rpc::Error& error) {
  group_.run([this, alive = group_.shared_from_this(), error] {
    fail_now(group_.error(error.kind(), error.what()), false);
  });
}

void GroupFailure::left(int rank, std::uint64_t completed) {
  group_.run([this, alive = group_.shared_from_this(), rank, completed] {
    left_.emplace(rank, completed);
    const rpc::Error error = group_.error(rpc::ErrorKind::shut_down, group_.describe(rank) + " has left");
    for (GroupPart* const part : parts_) part->member_left(error);
    check_left();
  });
}

void GroupFailure::check_left() {
  for (const auto& [rank, completed] : left_)
    if (refused_.contains(rank) ||
        std::any_of(parts_.begin(), parts_.end(), [&](auto* part) { return part->awaits(rank, completed); }))
      return fail_now(rpc::ErrorKind::shut_down,
                      group_.describe(rank) + " left before all operations had completed");
}

void GroupFailure::refused_by(int rank) {
  refused_.insert(rank);
  check_left();
}

void GroupFailure::fail_now(const rpc::Error& error, bool tell, bool write) {
  if (ended_) return;
  ended_ = error;
  // Dumps are taken before any member is notified of the failure, and written afterwards, because files may
  // be slow.
  FlightWriter* const flights = group_.options().flights.get();
  rpc::Callback write_dumps;
  if (write && flights != nullptr)
    write_dumps = flights->take_all(*this, [this, alive = group_.shared_from_this()] {
      // Futures complete on the loop, not on the thread for files.
      group_.loop()->post([this, alive] { group_.run([this, alive] { fail_futures(); }); });
    });
  writing_ = static_cast<bool>(write_dumps);
  if (tell) notify_others<&GroupService::failed>(group_.id(), error.kind(), std::string(error.what()));
  for (GroupPart* const part : parts_) part->stop(error);
  writing_ ? write_dumps() : fail_futures();
}

// The program may exit when a future fails, so futures wait for the dumps.
void GroupFailure::fail_futures() {
  writing_ = false;
  for (GroupPart* const part : parts_) part->fail(*ended_);
  for (rpc::Callback& job : std::exchange(after_dumps_, {})) job();
}

void GroupFailure::after_dumps(rpc::Callback job) {
  group_.run_one([this, alive = group_.shared_from_this(), job = std::move(job)]() mutable {
    writing_ ? after_dumps_.push_back(std::move(job)) : job();
  });
}

// If a member cannot be reached, it is lost, even if the failed message is the first sign of the loss. In a
// job of fixed size, the job's failure may name another member as the lost one.
void GroupFailure::not_sent(int to, const std::exception_ptr& error) {
  if (const auto job = group_.agent()->job_error()) return fail_now(job->kind(), job->what());
  if (left_.contains(to)) return refused_by(to);
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
                               ? group_.describe(to) + " was lost: a message to it failed: "
                               : "a message to " + group_.describe(to) + " failed: ";
  fail_now(kind, text + group_.text_of(error));
}

// --- Operations in flight when the group ended ---

FlightDump GroupFailure::flight() const {
  FlightDump dump = FlightDump::here();
  dump.origin = group_.id().origin;
  dump.number = group_.id().number;
  dump.group = group_.name();
  dump.rank = group_.rank();
  for (const rpc::AgentId& member : group_.members()) dump.members.push_back(member.name);
  dump.records = group_.recorder().records();
  return dump;
}

void GroupFailure::note_awaited() {
  group_.run_first([this, alive = group_.shared_from_this()] {
    for (GroupPart* const part : parts_) part->record_awaited();
  });
}

FlightDump GroupFailure::dump() {
  for (GroupPart* const part : parts_) part->record_awaited();
  FlightDump dump = flight();
  if (ended_) dump.error = ended_->what();
  return dump;
}

rpc::Future<FlightDump> GroupFailure::take_dump() {
  rpc::Promise<FlightDump> promise;
  auto future = promise.future();
  group_.run_first([this, alive = group_.shared_from_this(), promise = std::move(promise)]() mutable {
    promise.complete(rpc::capture([&] { return dump(); }));
  });
  return future;
}

// --- Deadlines ---

// Only the earliest deadline has a timer. Its job checks all deadlines, and schedules the next one.
void GroupFailure::arm(rpc::Clock::time_point when) {
  if (when == rpc::Clock::time_point::max() || (armed_ && *armed_ <= when)) return;
  armed_ = when;
  group_.loop()->post([this, weak = group_.weak_from_this(), loop = std::weak_ptr(group_.loop()), when] {
    const auto here = loop.lock();
    if (here == nullptr) return;
    here->schedule(when, [this, weak] {
      if (const auto alive = weak.lock()) group_.run([this, alive] { check_deadlines(); });
    });
  });
}

void GroupFailure::check_deadlines() {
  armed_.reset();
  const rpc::Clock::time_point now = group_.loop()->now();
  auto next = rpc::Clock::time_point::max();
  for (GroupPart* const part : parts_) {
    next = std::min(next, part->check_deadlines(now));
    if (ended_) return;
  }
  arm(next);
}

}  // namespace weft::collectives
