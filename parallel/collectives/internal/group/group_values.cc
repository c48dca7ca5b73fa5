#include <weft/parallel/collectives/internal/group/group_values.h>

#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/site.h>

#include <algorithm>

namespace weft::collectives {

rpc::Future<GroupValues::Values> GroupValues::give(RoundKey round, std::string meaning, rpc::Site where,
                                                   rpc::Buffer value, bool wants_all,
                                                   std::optional<std::chrono::nanoseconds> timeout) {
  const std::string site = where.text();
  rpc::Promise<Values> promise;
  failure_.abort_on_cancel(promise, meaning + " at " + site);
  auto future = promise.future();
  group_.post([this, alive = group_.shared_from_this(), round = std::move(round),
               meaning = std::move(meaning), site, where, value = std::move(value), wants_all,
               limit = group_.wait_limit(timeout), promise = std::move(promise)]() mutable {
    if (failure_.error()) return promise.fail(*failure_.error());
    if (given_.contains(round))
      return promise.fail(group_.error(
          rpc::ErrorKind::invalid_argument,
          meaning + " at " + site + ": a " + (round.monitored ? "monitored barrier" : "launch of this name") +
              " already waits for other ranks: " +
              (round.monitored ? "wait until it has completed"
                               : "use another name, or wait until that launch has begun")));
    std::optional<FlightRecorder::Ticket> ticket;
    if (round.launch.empty() && !round.monitored)
      ticket = group_.recorder().begin({.kind = FlightKind::values,
                                        .sequence = round.number,
                                        .meaning = meaning,
                                        .site = where,
                                        .bytes = value.size()});
    // Rank 0 names the missing members; a member that gets no answer from rank 0 for some more time reports
    // rank 0 as missing.
    const auto overdue = group_.rank() == 0 ? rpc::Clock::time_point::max()
                                            : rpc::later(group_.deadline_of(limit), timeout_for_answers);
    given_.emplace(round, Given{meaning + " at " + site, overdue, std::move(promise), ticket});
    failure_.arm(overdue);
    const auto when_answered = [this, alive, round](rpc::Result<Values>&& values) {
      group_.run(
          [this, alive, round, values = std::move(values)]() mutable { answered(round, std::move(values)); });
    };
    if (group_.rank() == 0)
      return take(0, round, std::move(meaning), site, std::move(value), wants_all, limit).then(when_answered);
    group_.peer(0)
        .call<&GroupService::give>(group_.id(), round, meaning, site, value, wants_all, limit.count())
        .then(when_answered);
  });
  return future;
}

void GroupValues::answered(const RoundKey& round, rpc::Result<Values> values) {
  const auto found = given_.find(round);
  if (found == given_.end()) return;
  if (!values.ok()) {
    try {
      std::rethrow_exception(values.error());
    } catch (const rpc::RemoteError& refused) {
      if (refused.kind() == rpc::ErrorKind::shut_down) return failure_.refused_by(0);
      // The signatures differ.
      values = std::make_exception_ptr(rpc::Error(refused.kind(), refused.detail()));
    } catch (...) {
      if (group_.rank() != 0) return failure_.not_sent(0, std::current_exception());
    }
  }
  if (const auto ticket = found->second.ticket)
    group_.note_end(*ticket, values.ok() ? nullptr : values.error());
  rpc::Promise<Values> promise = std::move(found->second.promise);
  given_.erase(found);
  promise.complete(std::move(values));
}

rpc::Future<GroupValues::Values> GroupValues::take(int from, RoundKey round, std::string meaning,
                                                   std::string site, rpc::Buffer bytes, bool wants_all,
                                                   std::chrono::nanoseconds limit) {
  rpc::Promise<Values> promise;
  auto future = promise.future();
  group_.run([this, alive = group_.shared_from_this(), promise = std::move(promise), from,
              round = std::move(round), meaning = std::move(meaning), site = std::move(site),
              bytes = std::move(bytes), wants_all, limit]() mutable {
    if (failure_.error()) return promise.fail(*failure_.error());
    const auto deadline = group_.deadline_of(limit);
    Round& values = rounds_[round];
    values.insert_or_assign(from, Value{std::move(meaning), std::move(site), std::move(bytes), wants_all,
                                        deadline, std::move(promise)});
    if (static_cast<int>(values.size()) == group_.size())
      end(round, std::move(rounds_.extract(round).mapped()));
    failure_.arm(deadline);
    failure_.check_left();
  });
  return future;
}

void GroupValues::end(const RoundKey& key, Round round) {
  const bool same = std::all_of(round.begin(), round.end(), [&](const auto& entry) {
    return entry.second.meaning == round.begin()->second.meaning;
  });
  if (!same) {
    std::map<int, std::string> texts;
    for (const auto& [rank, value] : round) texts[rank] = value.meaning + " at " + value.site;
    const rpc::Error error = group_.difference(texts);
    for (auto& [rank, value] : round) value.promise.fail(error);
    return;
  }
  Values all;
  if (key.monitored)
    all.push_back(rpc::pack(missing_in(round)));
  else if (key.launch.empty())
    for (const auto& [rank, value] : round) all.push_back(value.bytes);
  else
    all.push_back(rpc::pack(complete_launches_++));
  for (auto& [rank, value] : round) value.promise.complete(value.wants_all ? all : Values{});
}

std::vector<int> GroupValues::missing_in(const Round& round) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < group_.size(); ++rank)
    if (!round.contains(rank)) ranks.push_back(rank);
  return ranks;
}

bool GroupValues::awaits(int rank, std::uint64_t) {
  return std::any_of(rounds_.begin(), rounds_.end(), [&](const auto& entry) {
    return !entry.first.monitored && !entry.second.contains(rank);
  });
}

void GroupValues::launch(const std::string& name, LaunchSequence::Begin begin, rpc::Site site,
                         std::optional<std::chrono::nanoseconds> timeout) {
  give({.launch = name}, "launch(" + name + ")", site, {}, true, timeout)
      .then([this, alive = group_.shared_from_this(),
             begin = std::move(begin)](rpc::Result<Values>&& number) mutable {
        if (!number.ok()) return begin(number.error());
        // In turn, because this continuation runs on the caller's thread if all members were ready before it
        // was attached.
        group_.post([this, alive, number = std::move(number), begin = std::move(begin)]() mutable {
          launch_numbered(number.value().at(0), std::move(begin));
        });
      });
}

void GroupValues::launch_numbered(const rpc::Buffer& number, LaunchSequence::Begin begin) {
  if (failure_.error()) return begin(std::make_exception_ptr(*failure_.error()));
  auto place = rpc::capture([&] { return rpc::unpack<std::uint64_t>(number); });
  if (!place.ok()) {
    failure_.fail(place.error());
    return begin(place.error());
  }
  // On the loop: code of the program must not run in the group's turn.
  for (LaunchSequence::Begin& next : launches_.ready(std::move(place).get(), std::move(begin)))
    begins_.post([next = std::move(next)]() mutable { next({}); });
}

rpc::Clock::time_point GroupValues::check_deadlines(rpc::Clock::time_point now) {
  auto next = rpc::Clock::time_point::max();
  std::string what, who;
  if (const auto barrier = rounds_.find({.monitored = true}); barrier != rounds_.end()) {
    const Round& round = barrier->second;
    if (std::any_of(round.begin(), round.end(),
                    [&](const auto& entry) { return entry.second.deadline <= now; }))
      end(barrier->first, std::move(rounds_.extract(barrier).mapped()));
  }
  for (const auto& [key, round] : rounds_)
    for (const auto& [rank, value] : round) {
      next = std::min(next, value.deadline);
      if (!what.empty() || value.deadline > now) continue;
      what = value.meaning + " at " + value.site;
      for (const int other : missing_in(round))
        who += (who.empty() ? "" : ", ") + group_.describe(other) + " has not begun it";
    }
  for (const auto& [round, given] : given_) {
    next = std::min(next, given.deadline);
    if (!what.empty() || given.deadline > now) continue;
    what = given.what;
    who = group_.describe(0) + " does not answer";
  }
  if (!what.empty())
    failure_.fail_now(rpc::ErrorKind::deadline_exceeded, what + " did not complete in time: " + who);
  return next;
}

void GroupValues::fail(const rpc::Error& error) {
  for (auto& [key, round] : std::exchange(rounds_, {}))
    for (auto& [rank, value] : round) value.promise.fail(error);
  for (auto& [round, given] : std::exchange(given_, {})) {
    if (given.ticket) group_.recorder().failed(*given.ticket, error.what());
    given.promise.fail(error);
  }
  for (LaunchSequence::Begin& begin : launches_.take_all()) begin(std::make_exception_ptr(error));
}

}  // namespace weft::collectives
