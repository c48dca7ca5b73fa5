#include <weft/parallel/collectives/internal/group/group_collectives.h>

#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/parallel/collectives/operation/internal/signature_bytes.h>
#include <weft/rpc/core/duration_text.h>

#include <algorithm>

namespace weft::collectives {
namespace {

// The text of a collective, for people who diagnose a hanging group.
template <class F>
auto with_operation(const CollectiveInFlight& in_flight, F f) {
  const Collective& collective = in_flight.collective();
  const SignatureBytes meaning(collective.signature);
  return f(FlightOperation{.kind = FlightKind::collective,
                           .sequence = in_flight.sequence(),
                           .meaning = meaning.view(),
                           .render = &SignatureBytes::text,
                           .site = collective.site,
                           .bytes = collective.layout.elements * collective.memory.item_size,
                           .begun = in_flight.created(),
                           .moved = in_flight.arrived()});
}

}  // namespace

// --- One collective ---

rpc::Future<void> GroupCollectives::start(Collective collective, bool inlined) {
  const Pointer started = backend_.make(self(), std::move(collective));
  started->promise_.on_cancel([this, weak = std::weak_ptr(started)] {  // the collective keeps this group
    if (const auto alive = weak.lock())
      failure_.abort(group_.describe(group_.rank()) + " aborted " + alive->text());
  });
  auto future = started->promise_.future();
  started->start(inlined);
  return future;
}

// Nothing waits for this rank's part, so it has no deadline.
rpc::Future<void> GroupCollectives::decline(Operation operation, std::optional<c10::DeviceType> device,
                                            rpc::Site site, const std::exception_ptr& why) {
  Collective refused;
  refused.signature.operation = operation;
  refused.signature.device = device;
  refused.signature.refused = true;
  refused.site = site;
  refused.timeout = std::chrono::nanoseconds::max();
  refused.refusal = group_.text_of(why);
  (void)start(std::move(refused));
  return rpc::Future<void>::made(rpc::Result<void>(why));
}

void GroupCollectives::begin(Pointer collective, bool inlined) {
  rpc::Callback begin = [alive = self(), collective = std::move(collective)] {
    alive->begin_numbered(collective);
  };
  inlined ? group_.run(std::move(begin)) : group_.post(std::move(begin));
}

void GroupCollectives::begin_numbered(const Pointer& collective) {
  if (const auto& error = failure_.error()) return fail_one(*collective, *error);
  if (const auto& left = failure_.ranks_that_left(); !left.empty())
    return fail_one(*collective,
                    group_.error(rpc::ErrorKind::shut_down,
                                 group_.describe(left.begin()->first) + " has left; " + collective->text()));
  const std::uint64_t sequence = collective->number_ = begun_++;
  watch(collective);
  if (collective->collective_.signature.refused) exchange_signatures(collective);
  if (auto early = early_.extract(sequence)) {
    early_messages_ -= early.mapped().count();
    early_bytes_ -= early.mapped().bytes;
    const bool known = !early.mapped().signatures.empty();
    collective->signatures_.merge(early.mapped().signatures);
    if (known) exchange_signatures(collective);
    for (Early::Message& message : early.mapped().messages)
      take(collective, message.from, message.label, message.hash, std::move(message.bytes));
  }
  if (!has_ended()) collective->begin();
}

void GroupCollectives::keep(const Pointer& collective) {
  // It has completed, or its backend will report that it has stopped.
  if (collective->closed_ || has_ended()) return;
  watch(collective);
  failure_.check_left();
}

void GroupCollectives::watch(const Pointer& collective) {
  collective->kept_ = true;
  running_[collective->sequence()] = collective;
  collective->deadline_ = group_.deadline_of(collective->collective_.timeout);
  const auto warns_after = group_.options().stall_warning;
  if (warns_after.count() > 0 && !collective->collective_.signature.refused)
    collective->warns_at_ = group_.deadline_of(warns_after);
  const auto late_after = group_.options().late_after;
  if (late_after.count() > 0 && !collective->collective_.timeout)
    collective->late_at_ = group_.deadline_of(late_after / 2);
  record(*collective);
  failure_.arm(std::min({collective->deadline_, collective->warns_at_, collective->late_at_}));
}

void GroupCollectives::send(Pointer collective, int to, std::uint32_t label, const rpc::Buffer& bytes,
                            rpc::Callback left) {
  const std::uint64_t sequence = collective->sequence(),
                      hash = collective->hash_ + collective->elements_for(to);
  group_.notify<&GroupService::data>(
      to,
      [this, alive = group_.shared_from_this(), collective = std::move(collective), to,
       left = std::move(left)](rpc::Result<void>&& sent) mutable {
        if (sent.ok()) return group_.run(std::move(left));
        group_.run([this, alive, to, error = sent.error()] { failure_.not_sent(to, error); });
      },
      group_.id(), sequence, label, hash, bytes);
}

void GroupCollectives::take(const Pointer& collective, int from, std::uint32_t label, std::uint64_t hash,
                            rpc::Buffer bytes) {
  if (collective->closed_) return;
  const auto announced = collective->announced(hash);
  if (!announced) return exchange_signatures(collective);
  const std::uint64_t expected = collective->elements_from(from);
  if (*announced == expected) return collective->deliver(from, label, std::move(bytes));
  failed(collective,
         std::make_exception_ptr(rpc::Error(rpc::ErrorKind::invalid_argument,
                                            group_.describe(from) + " has " + std::to_string(*announced) +
                                                " elements for " + group_.describe(group_.rank()) +
                                                ", which expects " + std::to_string(expected))));
}

// The collective cannot complete on any rank: it fails on each rank that has all signatures.
void GroupCollectives::exchange_signatures(const Pointer& collective) {
  auto& signatures = collective->signatures_;
  if (!collective->disagrees_) {
    collective->disagrees_ = true;
    collective->close();
    signatures[group_.rank()] = collective->text();
    failure_.notify_others<&GroupService::disagree>(group_.id(), collective->sequence(), collective->text());
    collective->on_difference();
  }
  if (static_cast<int>(signatures.size()) == group_.size()) differed(collective, signatures);
}

void GroupCollectives::differed(const Pointer& collective, const std::map<int, std::string>& signatures) {
  if (collective->kept_) running_.erase(collective->sequence());
  fail_one(*collective, group_.difference(signatures));
}

// The bytes of other ranks, or their sizes, do not fit.
void GroupCollectives::failed(const Pointer& collective, const std::exception_ptr& error) {
  if (error != nullptr) {
    rpc::ErrorKind kind = rpc::ErrorKind::protocol_error;
    try {
      std::rethrow_exception(error);
    } catch (const rpc::Error& known) {
      kind = known.kind();
    } catch (...) {
    }
    failure_.fail_now(kind, collective->text() + ": " + group_.text_of(error));
  }
  if (collective->closed_ || collective->in_use_) return;
  failure_.writes_dumps() ? failing_.push_back(collective) : fail_one(*collective, *failure_.error());
}

void GroupCollectives::done(const Pointer& collective) {
  if (collective->kept_) running_.erase(collective->sequence());
  collective->closed_ = true;
  auto result = rpc::capture([&] {
    if (collective->collective_.finish) collective->collective_.finish();
  });
  if (collective->ticket_) {
    record_arrival(*collective);
    group_.recorder().done(*collective->ticket_);
  } else {
    with_operation(*collective,
                   [this](const FlightOperation& operation) { group_.recorder().note(operation); });
  }
  collective->promise_.complete(std::move(result));
}

void GroupCollectives::fail_one(CollectiveInFlight& collective, const rpc::Error& error) {
  collective.close();
  record(collective);
  record_arrival(collective);
  group_.recorder().failed(*collective.ticket_, error.what());
  collective.promise_.fail(error);
}

// Records the operation once, if other ranks may see it in flight.
void GroupCollectives::record(CollectiveInFlight& collective) {
  if (!collective.ticket_)
    collective.ticket_ = with_operation(
        collective, [this](const FlightOperation& operation) { return group_.recorder().begin(operation); });
}

void GroupCollectives::record_arrival(CollectiveInFlight& collective) {
  if (const auto since = collective.arrived(); since != 0)
    group_.recorder().moving(*collective.ticket_, since);
}

// --- Messages of members ---

void GroupCollectives::data(int from, std::uint64_t sequence, std::uint32_t label, std::uint64_t hash,
                            rpc::Buffer bytes) {
  group_.run([this, alive = group_.shared_from_this(), from, sequence, label, hash,
              bytes = std::move(bytes)]() mutable {
    if (has_ended()) return;
    if (sequence >= begun_) {
      Early& early = early_[sequence];
      const std::size_t size = bytes.size();
      early.messages.push_back({from, label, hash, std::move(bytes)});
      kept_early(early, size);
    } else if (const auto found = running_.find(sequence); found != running_.end()) {
      take(Pointer(found->second), from, label, hash, std::move(bytes));
    }
  });
}

void GroupCollectives::signature(int from, std::uint64_t sequence, std::string signature) {
  group_.run(
      [this, alive = group_.shared_from_this(), from, sequence, signature = std::move(signature)]() mutable {
        if (has_ended()) return;
        if (sequence >= begun_) {
          Early& early = early_[sequence];
          const std::size_t size = signature.size();
          if (early.signatures.emplace(from, std::move(signature)).second) kept_early(early, size);
        } else if (const auto found = running_.find(sequence); found != running_.end()) {
          const Pointer collective = found->second;
          collective->signatures_[from] = std::move(signature);
          exchange_signatures(collective);
        }
      });
}

void GroupCollectives::kept_early(Early& early, std::size_t bytes) {
  early.bytes += bytes;
  ++early_messages_;
  early_bytes_ += bytes;
  const GroupOptions& options = group_.options();
  if (early_messages_ <= options.max_early_messages && early_bytes_ <= options.max_early_bytes) return;
  failure_.fail_now(rpc::ErrorKind::resource_exhausted,
                    group_.describe(group_.rank()) + " has begun " + std::to_string(begun_) +
                        " collectives; for later ones other members have sent " +
                        std::to_string(early_messages_) + " messages of " + std::to_string(early_bytes_) +
                        " bytes, more than max_early_messages (" +
                        std::to_string(options.max_early_messages) + ") or max_early_bytes (" +
                        std::to_string(options.max_early_bytes) +
                        ") of GroupOptions: wait for results before further collectives, or raise the limit");
}

// --- The end of the group ---

bool GroupCollectives::awaits(CollectiveInFlight& collective, int rank) const {
  return collective.disagrees_ ? !collective.signatures_.contains(rank) : collective.awaits(rank);
}

// A member that has completed a collective has sent what the others need, even if it has not arrived here
// yet.
bool GroupCollectives::awaits(int rank, std::uint64_t completed) {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& entry) {
    return entry.first >= completed && awaits(*entry.second, rank);
  });
}

std::vector<int> GroupCollectives::awaited_by(CollectiveInFlight& collective) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group_.size(); ++rank)
    if (rank != group_.rank() && awaits(collective, rank)) ranks.push_back(rank);
  return ranks;
}

void GroupCollectives::record_awaited() {
  for (const auto& [sequence, collective] : running_) {
    if (collective->closed_) continue;
    record_arrival(*collective);
    group_.recorder().waits_for(*collective->ticket_, awaited_by(*collective));
  }
}

void GroupCollectives::stop(const rpc::Error& /*error*/) {
  early_.clear();
  backend_.stop();
  for (auto& [sequence, collective] : std::exchange(running_, {})) {
    if (collective->in_use_ && !collective->disagrees_) continue;  // its backend reports its end
    collective->close();
    failing_.push_back(collective);
  }
}

void GroupCollectives::fail(const rpc::Error& error) {
  for (const Pointer& collective : std::exchange(failing_, {})) fail_one(*collective, error);
}

// --- Deadlines ---

rpc::Clock::time_point GroupCollectives::check_deadlines(rpc::Clock::time_point now) {
  constexpr auto never = rpc::Clock::time_point::max();
  auto next = never;
  for (const auto& [sequence, collective] : std::map(running_)) {
    if (collective->warns_at_ <= now) warn(*collective);
    if (collective->deadline_ <= now) {
      collective->deadline_ = collective->warns_at_ = collective->late_at_ = never;
      ask_who_is_missing(collective, collective->collective_.timeout.value_or(group_.options().timeout),
                         /*must_end=*/true);
    } else if (collective->late_at_ <= now) {
      collective->late_at_ = never;
      ask_who_is_missing(collective, group_.options().late_after, /*must_end=*/false);
    }
    next = std::min({next, collective->deadline_, collective->warns_at_, collective->late_at_});
  }
  return next;
}

// A rank that calls a collective alone, for example in evaluation on rank 0, would wait for the timeout.
void GroupCollectives::warn(CollectiveInFlight& collective) const {
  collective.warns_at_ = rpc::Clock::time_point::max();
  if (collective.closed_) return;
  std::string who;
  for (const int rank : awaited_by(collective)) who += (who.empty() ? "" : ", ") + group_.describe(rank);
  if (who.empty()) return;
  group_.agent()->log().write(rpc::LogLevel::warning, group_.prefix() + collective.text() +
                                                          " has waited for " +
                                                          rpc::seconds_text(group_.options().stall_warning) +
                                                          " for " + who + ": all ranks must call it");
}

// Asks all members. A member that does not reply soon also counts as missing. Before the deadline, a member
// that makes progress elsewhere, for example in a group that was split from this one, does not: it is asked
// again.
void GroupCollectives::ask_who_is_missing(const Pointer& collective, std::chrono::nanoseconds limit,
                                          bool must_end) {
  struct Answers {
    int open;
    std::map<int, std::string> missing = {};
    std::map<int, std::uint64_t> activity = {};
  };
  const auto answers = std::make_shared<Answers>(Answers{group_.size()});
  const auto answered = [this, alive = group_.shared_from_this(), collective, answers, limit, must_end](
                            int rank, const char* fault, std::optional<std::uint64_t> activity = {}) {
    auto& missing = answers->missing;
    if (fault != nullptr) missing[rank] = group_.describe(rank) + " " + fault;
    if (activity) answers->activity[rank] = *activity;
    if (--answers->open != 0 || !running_.contains(collective->sequence())) return;
    const auto before = std::exchange(collective->activity_, answers->activity);
    const auto progresses = [&](const auto& entry) {
      const auto [now, then] = std::pair(answers->activity.find(entry.first), before.find(entry.first));
      return now != answers->activity.end() && (then == before.end() || then->second != now->second);
    };
    if (!must_end && std::erase_if(missing, progresses) != 0) {
      collective->late_at_ = group_.deadline_of(limit / 2);
      failure_.arm(collective->late_at_);
    }
    if (missing.empty() && !must_end) return;
    std::string who;
    const auto layer = CollectivesLayer::of(*group_.agent());
    for (const auto& [late, text] : missing) {
      who += (who.empty() ? "" : ", ") + text;
      layer->add_late(group_.members()[static_cast<std::size_t>(late)]);
    }
    if (who.empty()) who = "all ranks have begun it";
    failure_.fail_now(rpc::ErrorKind::deadline_exceeded, collective->text() + " did not complete within " +
                                                             rpc::seconds_text(limit) + ": " + who);
  };
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) {
      answered(rank, nullptr);
      continue;
    }
    const auto peer = group_.peer(rank).with({.timeout = timeout_for_answers});
    peer.template call<&GroupService::standing>(group_.id(), collective->sequence())
        .then([this, answered, rank, must_end, peer](rpc::Result<bool>&& begun) {
          const auto answer = [this, answered, rank](const char* fault,
                                                     std::optional<std::uint64_t> activity) {
            group_.run([answered, rank, fault, activity] { answered(rank, fault, activity); });
          };
          if (!begun.ok()) return answer("does not answer", {});
          if (begun.value()) return answer(nullptr, {});
          if (must_end) return answer("has not begun it", {});
          peer.template call<&GroupService::activity>(group_.name())
              .then([answer](rpc::Result<Activity>&& activity) {
                activity.ok() ? answer("has not begun it", activity.value().begun)
                              : answer("does not answer", {});
              });
        });
  }
}

}  // namespace weft::collectives
