#include <weft/rpc/balance/replica_plan.h>

#include <weft/rpc/core/fixed_string.h>
#include <weft/rpc/core/split_mix.h>

#include <algorithm>

namespace weft::rpc {

void ReplicaPlan::set(const std::vector<std::string>& names) {
  std::vector<Replica> next;
  for (const std::string& name : names) {
    const auto same = [&](const Replica& replica) { return replica.name == name; };
    if (std::any_of(next.begin(), next.end(), same)) continue;
    if (const auto known = std::find_if(replicas_.begin(), replicas_.end(), same); known != replicas_.end()) {
      next.push_back(std::move(*known));
      known->name.clear();
    } else {
      next.push_back({.id = ++last_id_, .name = name, .hash = name_hash(name)});
    }
  }
  replicas_ = std::move(next);
  // The available replicas may have been removed: at least one must not be ejected.
  if (!replicas_.empty() && std::all_of(replicas_.begin(), replicas_.end(),
                                        [](const Replica& r) { return r.ejected_until.has_value(); }))
    std::min_element(replicas_.begin(), replicas_.end(), [](const Replica& a, const Replica& b) {
      return *a.ejected_until < *b.ejected_until;
    })->ejected_until.reset();
}

const ReplicaPlan::Replica* ReplicaPlan::find(Id id) const {
  const auto found =
      std::find_if(replicas_.begin(), replicas_.end(), [id](const Replica& r) { return r.id == id; });
  return found == replicas_.end() ? nullptr : &*found;
}

ReplicaPlan::Replica* ReplicaPlan::find_mutable(Id id) { return const_cast<Replica*>(find(id)); }

void ReplicaPlan::set_reach(Id id, Reach reach) {
  if (Replica* replica = find_mutable(id)) replica->reach = reach;
}

bool ReplicaPlan::available(const Replica& replica, Time now) const {
  if (!replica.ejected_until) return true;
  return now >= *replica.ejected_until && !replica.probing;
}

std::optional<ReplicaPlan::Choice> ReplicaPlan::choose(Time now, std::optional<std::uint64_t> key,
                                                       const std::vector<Id>& but) {
  std::vector<Replica*> left, good;
  for (Replica& replica : replicas_) {
    if (std::find(but.begin(), but.end(), replica.id) != but.end()) continue;
    left.push_back(&replica);
    if (available(replica, now)) good.push_back(&replica);
  }
  if (left.empty()) return std::nullopt;
  if (good.empty()) good = left;
  const bool by_key = options_.policy == BalancePolicy::consistent_hash && key;
  const auto rank = [by_key](const Replica* replica) {
    return by_key && replica->reach == Reach::connecting ? Reach::ready : replica->reach;
  };
  Reach best = Reach::failing;
  for (const Replica* replica : good) best = std::min(best, rank(replica));
  std::erase_if(good, [&](const Replica* replica) { return rank(replica) != best; });
  Replica* chosen = nullptr;
  // A replica that is due for a probe is chosen under every policy. Otherwise a replica that the policy never
  // selects would stay ejected.
  for (Replica* replica : good)
    if (replica->ejected_until && available(*replica, now)) chosen = replica;
  if (chosen == nullptr) chosen = pick(good, key);
  const bool probe = chosen->ejected_until && available(*chosen, now);
  if (probe) chosen->probing = true;
  ++chosen->outstanding;
  return Choice{chosen->id, probe};
}

ReplicaPlan::Replica* ReplicaPlan::pick(const std::vector<Replica*>& from, std::optional<std::uint64_t> key) {
  if (options_.policy == BalancePolicy::consistent_hash && key) {
    std::size_t load = 1;  // including the call to be placed
    for (const Replica* replica : from) load += replica->outstanding;
    const double max_outstanding =
        options_.max_load * static_cast<double>(load) / static_cast<double>(from.size());
    Replica* best = nullptr;
    std::uint64_t highest = 0;
    for (Replica* replica : from) {
      if (options_.max_load > 0 &&
          static_cast<double>(replica->outstanding) >= std::max(max_outstanding, 1.0))
        continue;
      // The weights are equal on every machine, so that all agents select the same replica for a key.
      const std::uint64_t weight = split_mix(replica->hash ^ split_mix(*key));
      if (best != nullptr && weight <= highest) continue;
      best = replica;
      highest = weight;
    }
    if (best != nullptr) return best;
  }
  const std::size_t turn = turn_++;
  if (options_.policy != BalancePolicy::least_outstanding) return from[turn % from.size()];
  Replica* best = from[turn % from.size()];
  for (std::size_t i = 1; i < from.size(); ++i) {
    Replica* other = from[(turn + i) % from.size()];
    if (other->outstanding < best->outstanding) best = other;
  }
  return best;
}

void ReplicaPlan::finish(const Choice& choice, Outcome outcome, Time now) {
  Replica* replica = find_mutable(choice.id);
  if (replica == nullptr) return;
  --replica->outstanding;
  if (choice.probe) replica->probing = false;
  switch (outcome) {
    case Outcome::good:
      replica->failures = 0;
      // Calls that started before the ejection say nothing about the current state.
      if (replica->ejected_until && !choice.probe) return;
      replica->ejections = 0;
      replica->ejected_until.reset();
      return;
    case Outcome::failed:
      ++replica->failures;
      if (choice.probe || (!replica->ejected_until && replica->failures >= options_.ejection.failures))
        eject(*replica, now);
      return;
    case Outcome::unknown:
      return;
  }
}

void ReplicaPlan::eject(Replica& replica, Time now) {
  const bool others = std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& other) {
    return &other != &replica && !other.ejected_until;
  });
  if (!others) {
    replica.ejected_until.reset();
    return;
  }
  std::chrono::nanoseconds wait = options_.ejection.first;
  for (std::size_t i = 0; i < replica.ejections && wait < options_.ejection.longest; ++i) wait *= 2;
  ++replica.ejections;
  replica.ejected_until = later(now, std::min(wait, options_.ejection.longest));
}

}  // namespace weft::rpc
