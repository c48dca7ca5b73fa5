#include <weft/rpc/job/membership/collective_leader.h>

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

namespace weft::rpc::detail {
namespace {

constexpr std::size_t max_named = 8;    // names of missing members in an error
constexpr std::size_t max_groups = 64;  // lists of members that are kept while no round uses them

std::string type_of(const CollectiveArrival& arrival) {
  return arrival.type.empty() ? "calls barrier" : "calls all_gather of " + arrival.type;
}

template <class Arrived>
std::string missing_from(const CollectiveMembers& members, const Arrived& arrived) {
  std::string names;
  std::size_t missing = 0;
  for (const AgentId& id : members)
    if (!arrived.contains(id) && ++missing <= max_named)
      names += (names.empty() ? "'" : ", '") + id.name + "'";
  if (missing > max_named) names += " and " + std::to_string(missing - max_named) + " others";
  return members.empty() ? "the leader" : names;  // only the leader's own call is certain to have the list
}

// How an incarnation that was a member has ended; empty: it has not.
std::optional<MemberChange> end_of(const AgentId& member, const Roster& roster) {
  const MemberRecord* record = roster.find(member.name);
  if (record == nullptr) return MemberChange::lost;
  if (record->id() == member) {
    if (record->here()) return std::nullopt;
    return record->state == MemberState::left ? MemberChange::left : MemberChange::lost;
  }
  const bool left =
      record->before && record->before->incarnation == member.incarnation && record->before->left;
  return left ? MemberChange::left : MemberChange::lost;
}

Error not_a_member(const AgentId& member, const CollectiveArrival& arrival) {
  return Error(ErrorKind::permission_denied,
               "'" + member.name + "' is not a member of " + to_string(arrival));
}

Error unknown_members(const CollectiveArrival& arrival) {
  return Error(ErrorKind::not_found, to_string(arrival) + ": the leader does not know the members yet");
}

}  // namespace

std::string to_string(const CollectiveArrival& arrival) {
  return (arrival.type.empty() ? "barrier" : "all_gather") +
         (arrival.name.empty() ? "" : " '" + arrival.name + "'");
}

std::string digest_of(const CollectiveMembers& members) {
  std::string text;
  for (const AgentId& id : members)
    text += std::to_string(id.name.size()) + " " + id.name + " " + std::to_string(id.incarnation) + "\n";
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  if (EVP_Digest(text.data(), text.size(), hash.data(), nullptr, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorKind::internal, "OpenSSL has no SHA-256");
  std::string digest;
  for (std::size_t i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", hash[i]);
    digest += digits;
  }
  return digest;
}

CollectiveLeader::Key CollectiveLeader::key_of(const CollectiveArrival& arrival) {
  return {arrival.name, arrival.digest.empty() ? digest_of(arrival.among) : arrival.digest};
}

Future<CollectiveLeader::Gathered> CollectiveLeader::arrive(const AgentId& member,
                                                            const CollectiveArrival& arrival, Buffer value) {
  Promise<Gathered> promise(loop_);
  auto future = promise.future();
  const Key key = key_of(arrival);
  if (!arrival.among.empty() && key.second != digest_of(arrival.among)) {
    promise.fail(Error(ErrorKind::invalid_argument, to_string(arrival) + ": the digest of '" + member.name +
                                                        "' is not that of its members"));
    return future;
  }
  CollectiveArrival bare = arrival;  // without the list
  bare.among.clear();
  bare.digest = key.second;
  std::vector<Ended> ended;
  Refused refused;
  std::shared_ptr<Timer> timer;
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      unanswered_.push_back(std::move(promise));
      return future;
    }
    if (!arrival.among.empty()) learn(key.second, arrival.among, ended, refused);
    Group& group = group_of(key.second);
    const auto& members = group.members;
    OpenRounds& rounds = rounds_[key];
    auto open = rounds.open.find(arrival.round);
    const auto refuse = [&](const Error& error) { refused.emplace_back(std::move(promise), error); };
    if (members.empty() && (group.list_source.name.empty() || group.list_source == member)) {
      group.list_source = member;
      group.seen = arrival.seen;
      refuse(unknown_members(arrival));
    } else if (!members.empty() && !std::binary_search(members.begin(), members.end(), member)) {
      refuse(not_a_member(member, arrival));
    } else if (open == rounds.open.end() && arrival.round < rounds.failed) {
      refuse(*rounds.failure);
    } else if (open != rounds.open.end() && open->second.arrived.contains(member)) {
      refuse(Error(ErrorKind::invalid_argument,
                   to_string(arrival) + ": '" + member.name + "' has called it already"));
    } else if (open != rounds.open.end() && open->second.first.type != arrival.type) {
      const std::string clash = "'" + member.name + "' " + type_of(arrival) + ", '" +
                                open->second.arrived.begin()->first.name + "' " + type_of(open->second.first);
      open->second.arrived.emplace(member, Arrived{Buffer{}, std::move(promise)});
      open->second.first = bare;
      ended.push_back(fail(key, arrival.round, ErrorKind::type_mismatch, clash));
    } else {
      if (open == rounds.open.end()) open = rounds.open.emplace(arrival.round, Round{.first = bare}).first;
      Round& round = open->second;
      round.seen = std::max(round.seen, arrival.seen);
      round.arrived.emplace(member, Arrived{std::move(value), std::move(promise)});
      if (round.arrived.size() == members.size()) {
        ended.push_back(take(key, arrival.round));
      } else if (arrival.timeout != 0) {
        timer = round.timers.emplace_back(std::make_shared<Timer>());
      }
    }
    if (const auto now = rounds_.find(key);
        now != rounds_.end() && now->second.open.empty() && !now->second.failure)
      rounds_.erase(now);
  }
  deliver(std::move(ended), std::move(refused));
  if (timer != nullptr) start_timer(timer, bare);
  return future;
}

void CollectiveLeader::expect(const CollectiveMembers& members) {
  const std::string digest = digest_of(members);
  std::vector<Ended> ended;
  Refused refused;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    learn(digest, members, ended, refused);
  }
  deliver(std::move(ended), std::move(refused));
}

void CollectiveLeader::learn(const std::string& digest, const CollectiveMembers& members,
                             std::vector<Ended>& ended, Refused& refused) {
  Group& group = group_of(digest);
  if (!group.members.empty()) return;
  group.members = members;
  std::vector<std::pair<Key, std::uint64_t>> complete;
  for (auto& [key, rounds] : rounds_) {
    if (key.second != digest) continue;
    for (auto& [number, round] : rounds.open) {
      for (auto i = round.arrived.begin(); i != round.arrived.end();) {
        const bool member = std::binary_search(members.begin(), members.end(), i->first);
        if (!member) refused.emplace_back(std::move(i->second.promise), not_a_member(i->first, round.first));
        i = member ? std::next(i) : round.arrived.erase(i);
      }
      if (round.arrived.size() == members.size()) complete.emplace_back(key, number);
    }
  }
  for (const auto& [key, number] : complete) ended.push_back(take(key, number));
}

void CollectiveLeader::ask_another(const std::string& digest, Group& group, Refused& refused) {
  group.list_source = {};
  for (auto& [key, rounds] : rounds_) {
    if (key.second != digest) continue;
    for (auto& [number, round] : rounds.open) {
      if (round.arrived.empty()) continue;
      auto next = round.arrived.extract(round.arrived.begin());
      group.list_source = next.key();
      group.seen = round.seen;
      refused.emplace_back(std::move(next.mapped().promise), unknown_members(round.first));
      return;
    }
  }
}

CollectiveLeader::Group& CollectiveLeader::group_of(const std::string& digest) {
  if (groups_.size() >= max_groups && !groups_.contains(digest)) {
    std::set<std::string> used;
    for (const auto& [key, rounds] : rounds_) used.insert(key.second);
    std::erase_if(groups_, [&](const auto& group) { return !used.contains(group.first); });
  }
  return groups_[digest];
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
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    const Key key = key_of(arrival);
    if (const Round* round = find(arrival))
      ended.push_back(fail(key, arrival.round, ErrorKind::deadline_exceeded,
                           missing_from(groups_[key.second].members, round->arrived) +
                               " did not call it before the deadline"));
  }
  deliver(std::move(ended), {});
}

void CollectiveLeader::give_up(const AgentId& member, const CollectiveArrival& arrival, ErrorKind kind,
                               const std::string& reason) {
  std::vector<Ended> ended;
  {
    MutexLock lock(mutex_);
    const Round* const round = find(arrival);
    if (round != nullptr && round->arrived.contains(member))
      ended.push_back(fail(key_of(arrival), arrival.round, kind, "'" + member.name + "' " + reason));
  }
  deliver(std::move(ended), {});
}

Callback CollectiveLeader::judge(const Roster& roster, std::uint64_t version) {
  std::vector<Ended> all;
  Refused refused;
  {
    MutexLock lock(mutex_);
    if (stopped_) return [] {};
    for (auto& [digest, group] : groups_)
      if (group.members.empty() && !group.list_source.name.empty() && group.seen <= version &&
          end_of(group.list_source, roster))
        ask_another(digest, group, refused);
    struct Gone {
      Key key;
      std::uint64_t round;
      AgentId member;
      MemberChange change;
    };
    std::vector<Gone> gone;
    for (auto& [key, rounds] : rounds_) {
      const CollectiveMembers& members = groups_[key.second].members;
      for (auto& [number, round] : rounds.open) {
        if (members.empty() || round.seen > version || round.judged == version) continue;
        round.judged = version;
        for (const AgentId& id : members)
          if (const auto end = end_of(id, roster)) {
            gone.push_back({key, number, id, *end});
            break;
          }
      }
    }
    for (const auto& [key, round, member, change] : gone) {
      const bool left = change == MemberChange::left;
      all.push_back(fail(key, round, left ? ErrorKind::shut_down : ErrorKind::peer_lost,
                         "'" + member.name + (left ? "' has left the job" : "' was lost")));
    }
  }
  if (all.empty() && refused.empty()) return [] {};
  return [self = shared_from_this(), all = std::move(all), refused = std::move(refused)]() mutable {
    self->deliver(std::move(all), std::move(refused));
  };
}

void CollectiveLeader::forget(const AgentId& member) {
  MutexLock lock(mutex_);
  for (auto group = groups_.begin(); group != groups_.end();) {
    const auto& [digest, known] = *group;
    bool ends = std::binary_search(known.members.begin(), known.members.end(), member);
    if (ends)
      for (auto rounds = rounds_.begin(); rounds != rounds_.end();) {
        const bool same = rounds->first.second == digest, open = !rounds->second.open.empty();
        ends = ends && !(same && open);
        rounds = same && !open ? rounds_.erase(rounds) : std::next(rounds);
      }
    group = ends ? groups_.erase(group) : std::next(group);
  }
}

void CollectiveLeader::fail_all(const Error& error) {
  std::vector<Ended> all;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    std::vector<std::pair<Key, std::uint64_t>> open;
    for (const auto& [key, rounds] : rounds_)
      for (const auto& [number, round] : rounds.open) open.emplace_back(key, number);
    for (const auto& [key, number] : open) {
      const CollectiveMembers& members = groups_[key.second].members;
      all.push_back(fail(key, number, error.kind(),
                         "at its leader" + (members.empty() ? "" : " '" + members.front().name + "'") + ": " +
                             error.what()));
    }
  }
  deliver(std::move(all), {});
}

void CollectiveLeader::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

std::size_t CollectiveLeader::kept() const {
  MutexLock lock(mutex_);
  return rounds_.size();
}

CollectiveLeader::Round* CollectiveLeader::find(const CollectiveArrival& arrival) {
  if (stopped_) return nullptr;
  const auto rounds = rounds_.find(key_of(arrival));
  if (rounds == rounds_.end()) return nullptr;
  const auto open = rounds->second.open.find(arrival.round);
  return open == rounds->second.open.end() ? nullptr : &open->second;
}

CollectiveLeader::Ended CollectiveLeader::fail(const Key& key, std::uint64_t round, ErrorKind kind,
                                               const std::string& reason) {
  OpenRounds& rounds = rounds_.at(key);
  rounds.failed = std::max(rounds.failed, round + 1);
  rounds.failure.emplace(kind, to_string(rounds.open.at(round).first) + ": " + reason);
  Ended ended = take(key, round);
  ended.error = rounds.failure;
  return ended;
}

CollectiveLeader::Ended CollectiveLeader::take(const Key& key, std::uint64_t round) {
  const auto rounds = rounds_.find(key);
  auto taken = rounds->second.open.extract(round);
  if (rounds->second.open.empty() && !rounds->second.failure) rounds_.erase(rounds);
  return {std::move(taken.mapped()), std::nullopt};
}

void CollectiveLeader::deliver(std::vector<Ended>&& ended, Refused&& refused) const {
  for (auto& [promise, error] : refused) promise.fail(error);
  for (auto& [round, error] : ended) {
    if (!round.timers.empty())
      loop_->post([loop = loop_.get(), timers = std::move(round.timers)] {
        for (const auto& timer : timers) {
          timer->over = true;
          if (timer->id != 0) loop->cancel(timer->id);
        }
      });
    Gathered values;
    if (!error && !round.first.type.empty())
      for (auto& [id, arrived] : round.arrived) values.emplace(id.name, std::move(arrived.value));
    for (auto& [id, arrived] : round.arrived) {
      if (error) {
        arrived.promise.fail(*error);
      } else {
        arrived.promise.complete(Gathered(values));
      }
    }
  }
}

}  // namespace weft::rpc::detail
