#include <weft/rpc/rendezvous/collective_leader.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

constexpr std::size_t max_named = 8;  // names of missing members in an error

std::string type_of(const CollectiveArrival& arrival) {
  return arrival.type.empty() ? "calls barrier" : "calls all_gather of " + arrival.type;
}

std::string missing_from(const CollectiveArrival& arrival, const CollectiveLeader::Gathered& values) {
  std::string names;
  std::size_t missing = 0;
  for (const AgentId& id : arrival.among)
    if (!values.contains(id.name) && ++missing <= max_named)
      names += (names.empty() ? "'" : ", '") + id.name + "'";
  if (missing > max_named) names += " and " + std::to_string(missing - max_named) + " others";
  return names;
}

// How an incarnation that was a member has ended; empty: it has not.
std::optional<MemberChange> end_of(const AgentId& incarnation, const Roster& roster) {
  const MemberRecord* record = roster.find(incarnation.name);
  if (record == nullptr) return MemberChange::lost;
  if (record->id() == incarnation) {
    if (record->here()) return std::nullopt;
    return record->state == MemberState::left ? MemberChange::left : MemberChange::lost;
  }
  const bool left =
      record->before && record->before->incarnation == incarnation.incarnation && record->before->left;
  return left ? MemberChange::left : MemberChange::lost;
}

}  // namespace

std::string to_string(const CollectiveArrival& arrival) {
  return (arrival.type.empty() ? "barrier" : "all_gather") +
         (arrival.name.empty() ? "" : " '" + arrival.name + "'");
}

Future<CollectiveLeader::Gathered> CollectiveLeader::arrive(const AgentId& who,
                                                            const CollectiveArrival& arrival, Buffer value) {
  Promise<Gathered> promise(loop_);
  auto future = promise.future();
  std::optional<Error> refused;
  std::optional<Ended> ended;
  std::shared_ptr<Timer> timer;
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      unanswered_.push_back(std::move(promise));
      return future;
    }
    const Key key(arrival.name, arrival.among);
    OpenRounds& rounds = rounds_[key];
    auto open = rounds.open.find(arrival.round);
    if (open == rounds.open.end() && arrival.round < rounds.failed) {
      refused = rounds.failure;
    } else if (open != rounds.open.end() && open->second.values.contains(who.name)) {
      refused = Error(ErrorKind::invalid_argument,
                      to_string(arrival) + ": '" + who.name + "' has called it already");
    } else if (open != rounds.open.end() && open->second.first.type != arrival.type) {
      const std::string other = open->second.values.begin()->first;
      const std::string clash =
          "'" + who.name + "' " + type_of(arrival) + ", '" + other + "' " + type_of(open->second.first);
      open->second.waiting.push_back(std::move(promise));
      ended = fail(arrival, ErrorKind::type_mismatch, clash);
    } else {
      if (open == rounds.open.end()) open = rounds.open.emplace(arrival.round, Round{.first = arrival}).first;
      Round& round = open->second;
      round.seen = std::max(round.seen, arrival.seen);
      round.values.emplace(who.name, std::move(value));
      round.waiting.push_back(std::move(promise));
      if (round.values.size() == arrival.among.size()) {
        ended = take(key, arrival.round);
      } else if (arrival.timeout != 0) {
        timer = round.timers.emplace_back(std::make_shared<Timer>());
      }
    }
  }
  if (refused) promise.fail(*refused);  // NOLINT(bugprone-use-after-move): if refused, it was not moved
  if (ended) tell(*std::move(ended));
  if (timer != nullptr) start_timer(timer, arrival);
  return future;
}

void CollectiveLeader::start_timer(const std::shared_ptr<Timer>& timer, const CollectiveArrival& arrival) {
  const auto timeout = static_cast<std::chrono::nanoseconds::rep>(
      std::min<std::uint64_t>(arrival.timeout, std::numeric_limits<std::int64_t>::max()));
  const auto when = later(loop_->now(), std::chrono::nanoseconds(timeout));
  loop_->post([loop = loop_.get(), weak = weak_from_this(), timer, arrival, when] {
    if (timer->over) return;
    timer->id = loop->schedule(when, [weak, timer, arrival] {
      timer->id = 0;
      if (const auto leader = weak.lock()) leader->expire(arrival);
    });
  });
}

void CollectiveLeader::expire(const CollectiveArrival& arrival) {
  std::optional<Ended> ended;
  {
    MutexLock lock(mutex_);
    if (const Round* round = find(arrival))
      ended = fail(arrival, ErrorKind::deadline_exceeded,
                   missing_from(arrival, round->values) + " did not call it before the deadline");
  }
  if (ended) tell(*std::move(ended));
}

void CollectiveLeader::give_up(const AgentId& who, const CollectiveArrival& arrival, ErrorKind kind,
                               const std::string& reason) {
  std::optional<Ended> ended;
  {
    MutexLock lock(mutex_);
    if (find(arrival) != nullptr) ended = fail(arrival, kind, "'" + who.name + "' " + reason);
  }
  if (ended) tell(*std::move(ended));
}

Callback CollectiveLeader::judge(const Roster& roster, std::uint64_t version) {
  std::vector<Ended> all;
  {
    MutexLock lock(mutex_);
    if (stopped_) return [] {};
    std::vector<std::pair<CollectiveArrival, std::pair<AgentId, MemberChange>>> gone;
    for (auto& [key, rounds] : rounds_)
      for (auto& [number, round] : rounds.open) {
        if (round.seen > version || round.judged == version) continue;
        round.judged = version;
        for (const AgentId& id : key.second)
          if (const auto end = end_of(id, roster)) {
            gone.push_back({round.first, {id, *end}});
            break;
          }
      }
    for (const auto& [arrival, end] : gone) {
      const bool left = end.second == MemberChange::left;
      all.push_back(fail(arrival, left ? ErrorKind::shut_down : ErrorKind::peer_lost,
                         "'" + end.first.name + (left ? "' has left the job" : "' was lost")));
    }
  }
  return [self = shared_from_this(), all = std::move(all)]() mutable {
    for (Ended& ended : all) self->tell(std::move(ended));
  };
}

void CollectiveLeader::fail_all(const Error& error) {
  std::vector<Ended> all;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    std::vector<CollectiveArrival> open;
    for (const auto& [key, rounds] : rounds_)
      for (const auto& [number, round] : rounds.open) open.push_back(round.first);
    for (const auto& arrival : open)
      all.push_back(
          fail(arrival, error.kind(), "at its leader '" + arrival.among.front().name + "': " + error.what()));
  }
  for (Ended& ended : all) tell(std::move(ended));
}

void CollectiveLeader::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

CollectiveLeader::Round* CollectiveLeader::find(const CollectiveArrival& arrival) {
  if (stopped_) return nullptr;
  const auto rounds = rounds_.find(Key(arrival.name, arrival.among));
  if (rounds == rounds_.end()) return nullptr;
  const auto open = rounds->second.open.find(arrival.round);
  return open == rounds->second.open.end() ? nullptr : &open->second;
}

CollectiveLeader::Ended CollectiveLeader::fail(const CollectiveArrival& arrival, ErrorKind kind,
                                               const std::string& reason) {
  const Key key(arrival.name, arrival.among);
  OpenRounds& rounds = rounds_.at(key);
  rounds.failed = std::max(rounds.failed, arrival.round + 1);
  rounds.failure.emplace(kind, to_string(arrival) + ": " + reason);
  Ended ended = take(key, arrival.round);
  ended.error = rounds.failure;
  return ended;
}

CollectiveLeader::Ended CollectiveLeader::take(const Key& key, std::uint64_t round) {
  const auto rounds = rounds_.find(key);
  auto taken = rounds->second.open.extract(round);
  if (rounds->second.open.empty() && !rounds->second.failure) rounds_.erase(rounds);
  return {std::move(taken.mapped()), std::nullopt};
}

void CollectiveLeader::tell(Ended&& ended) const {
  auto& [round, error] = ended;
  if (!round.timers.empty())
    loop_->post([loop = loop_.get(), timers = std::move(round.timers)] {
      for (const auto& timer : timers) {
        timer->over = true;
        if (timer->id != 0) loop->cancel(timer->id);
      }
    });
  for (auto& promise : round.waiting) {
    if (error) {
      promise.fail(*error);
    } else {
      promise.complete(Gathered(round.values));
    }
  }
}

}  // namespace weft::rpc::detail
