// Every change has a version, which only increases. by_version_ orders the keys by their last change, and
// removals_ keeps the latest removals: together they give the changes since a version. A version older than
// forgotten_ is unknown; its watchers receive all keys.
//
// A wait is kept in the list of the key or prefix whose change it needs next. wake() takes all waits of a
// changed key, and of every prefix of it, and lets each try to complete; those that do not complete are kept
// again.
//
// The leases' clock advances in tick(), by at most two intervals at a time: if the owner was stopped, leases
// do not expire for that reason.
#include <weft/rpc/job/store/store_table.h>

#include <weft/rpc/core/parse_number.h>

#include <algorithm>

namespace weft::rpc {
void StoreChanges::apply_to(std::map<std::string, std::string>& copy) const {
  if (whole) copy.clear();
  for (const auto& [key, value] : entries) {
    if (value) {
      copy.insert_or_assign(key, *value);
    } else {
      copy.erase(key);
    }
  }
}

std::int64_t detail::sum_of(const std::string& key, const std::string* value, std::int64_t delta) {
  std::int64_t number = 0;
  if (value != nullptr) {
    const auto parsed = parse_number<std::int64_t>(*value);
    if (!parsed)
      throw Error(ErrorKind::invalid_argument, "add: '" + key + "' holds " + std::to_string(value->size()) +
                                                   " bytes, expected a decimal number within 64 bits");
    number = *parsed;
  }
  std::int64_t sum = 0;
  if (__builtin_add_overflow(number, delta, &sum))
    throw Error(ErrorKind::invalid_argument, "add: '" + key + "' holds " + std::to_string(number) +
                                                 ", and adding " + std::to_string(delta) +
                                                 " overflows 64 bits");
  return sum;
}

void detail::check_ttl(std::chrono::nanoseconds ttl) {
  if (ttl <= std::chrono::nanoseconds::zero())
    throw Error(ErrorKind::invalid_argument,
                "grant: a lease of " + std::to_string(ttl.count()) + " ns, expected more than 0");
}

Error detail::lease_lost(LeaseId lease) {
  return Error(ErrorKind::lease_lost, "the lease " + std::to_string(lease) + " has ended");
}

// --- Reading ---

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

std::optional<std::string> StoreTable::copy(const std::string& key) const {
  const std::string* value = find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

StoreView StoreTable::view(const std::string& prefix) const {
  StoreView view{version_, {}};
  for (auto i = entries_.lower_bound(prefix); i != entries_.end() && i->first.starts_with(prefix); ++i)
    view.entries.emplace_hint(view.entries.end(), i->first, i->second.value);
  return view;
}

bool StoreTable::unknown(std::uint64_t after) const {
  return after < forgotten_ || (after > version_ && !copy_);
}

bool StoreTable::changed(const std::string& prefix, std::uint64_t after) const {
  if (unknown(after)) return true;
  for (auto i = by_version_.lower_bound({after + 1, {}}); i != by_version_.end(); ++i)
    if (i->second.starts_with(prefix)) return true;
  for (auto i = removals_.rbegin(); i != removals_.rend() && i->first > after; ++i)
    if (i->second.starts_with(prefix)) return true;
  return false;
}

StoreChanges StoreTable::changes(const std::string& prefix, std::uint64_t after) const {
  StoreChanges changes{version_, unknown(after), {}};
  if (changes.whole) {
    for (auto& [key, value] : view(prefix).entries) changes.entries.emplace(key, std::move(value));
    return changes;
  }
  for (auto i = removals_.rbegin(); i != removals_.rend() && i->first > after; ++i)
    if (i->second.starts_with(prefix)) changes.entries.emplace(i->second, std::nullopt);
  for (auto i = by_version_.lower_bound({after + 1, {}}); i != by_version_.end(); ++i)
    if (i->second.starts_with(prefix)) {
      std::string key(i->second);
      const std::string* value = find(key);
      changes.entries.insert_or_assign(std::move(key), *value);  // it may have been removed before it was set
    }
  return changes;
}

// --- Changes ---

void StoreTable::put(const std::string& key, std::string value, LeaseId lease, std::uint64_t version) {
  auto [entry, added] = entries_.try_emplace(key, Entry{{}, 0, no_lease});
  if (!added) {
    by_version_.erase({entry->second.version, entry->first});
    if (entry->second.lease != lease) leave_lease(key, entry->second.lease);
  }
  entry->second = {std::move(value), version, lease};
  by_version_.emplace(version, entry->first);
}

bool StoreTable::take(const std::string& key, std::uint64_t version) {
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return false;
  by_version_.erase({entry->second.version, entry->first});
  leave_lease(key, entry->second.lease);
  entries_.erase(entry);
  remember_removal(key, version);
  return true;
}

void StoreTable::remember_removal(const std::string& key, std::uint64_t version) {
  removals_.emplace_back(version, key);
  if (removals_.size() <= max_removals) return;
  forgotten_ = removals_.front().first;
  removals_.pop_front();
}

void StoreTable::set(const std::string& key, std::string value, LeaseId lease, Jobs& jobs) {
  if (lease != no_lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) throw detail::lease_lost(lease);
    found->second.keys.insert(key);
  }
  put(key, std::move(value), lease, ++version_);
  wake(key, jobs);
}

bool StoreTable::remove(const std::string& key, Jobs& jobs) {
  if (!take(key, version_ + 1)) return false;
  ++version_;
  wake(key, jobs);
  return true;
}

void StoreTable::mirror(std::uint64_t version, std::vector<Change> changes, Jobs& jobs) {
  version_ = version;
  for (Change& change : changes) {
    if (change.value) {
      put(change.key, std::move(*change.value), no_lease, version);
    } else if (!take(change.key, version)) {
      remember_removal(change.key, version);  // of a key that has not changed since this copy began
    }
  }
  for (const Change& change : changes) wake(change.key, jobs);
}

void StoreTable::restart(std::uint64_t version, Jobs& jobs) {
  by_version_.clear();
  entries_.clear();
  removals_.clear();
  version_ = forgotten_ = version;
  // A wait for changes after a later version may refer to another store than the one that is copied now.
  copy_ = false;
  for (WaitsByText* waits : {&by_key_, &by_prefix_}) {
    std::vector<std::string> texts;
    for (const auto& [text, list] : *waits) texts.push_back(text);
    for (const std::string& text : texts) wake(*waits, text, jobs);
  }
  copy_ = true;
}

// --- Leases ---

std::chrono::nanoseconds StoreTable::end_of(std::chrono::nanoseconds ttl) const {
  return ttl > std::chrono::nanoseconds::max() - lease_clock_ ? std::chrono::nanoseconds::max()
                                                              : lease_clock_ + ttl;
}

void StoreTable::grant(LeaseId lease, std::chrono::nanoseconds ttl, Clock::time_point now) {
  if (leases_.empty()) interval_ = slowest_tick;
  interval_ = std::clamp(ttl / 4, fastest_tick, interval_);
  tick(now);
  leases_.emplace(lease, Lease{ttl, end_of(ttl), {}});
  ends_.emplace(end_of(ttl), lease);
}

void StoreTable::renew(LeaseId lease, Clock::time_point now) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) throw detail::lease_lost(lease);
  tick(now);
  ends_.erase({found->second.end, lease});
  found->second.end = end_of(found->second.ttl);
  ends_.emplace(found->second.end, lease);
}

void StoreTable::end_lease(LeaseId lease, Jobs& jobs) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  ends_.erase({found->second.end, lease});
  const std::set<std::string> keys = std::move(found->second.keys);
  leases_.erase(found);
  if (keys.empty()) return;
  ++version_;  // all keys are removed at one version
  for (const std::string& key : keys) take(key, version_);
  for (const std::string& key : keys) wake(key, jobs);
}

void StoreTable::leave_lease(const std::string& key, LeaseId lease) {
  if (const auto found = leases_.find(lease); found != leases_.end()) found->second.keys.erase(key);
}

void StoreTable::tick(Clock::time_point now) {
  if (ticked_ && now > *ticked_)
    lease_clock_ += std::min<std::chrono::nanoseconds>(now - *ticked_, 2 * interval_);
  ticked_ = now;
}

std::vector<LeaseId> StoreTable::due() const {
  std::vector<LeaseId> due;
  for (auto i = ends_.begin(); i != ends_.end() && i->first <= lease_clock_; ++i) due.push_back(i->second);
  return due;
}

// --- Waits ---

void StoreTable::keep(std::shared_ptr<StoreWait> wait) {
  StoreWait& kept = *wait;
  Waits& list = waits_of(kept)[kept.at_.text];
  kept.position_ = list.insert(list.end(), std::move(wait));
  kept.kept_ = true;
  ++waiting_;
}

void StoreTable::wait(std::shared_ptr<StoreWait> wait, Jobs& jobs) {
  if (Callback job = wait->answer(*this, wait)) jobs.push_back(std::move(job));
  // If the wait is being cancelled, fail() marks it before drop() removes it. So either over() is true here,
  // or drop() finds the wait in the table.
  if (!wait->over()) keep(std::move(wait));
}

void StoreTable::drop(const std::shared_ptr<StoreWait>& wait) {
  if (!wait->kept_) return;
  WaitsByText& waits = waits_of(*wait);
  const auto list = waits.find(wait->at_.text);
  list->second.erase(wait->position_);
  if (list->second.empty()) waits.erase(list);
  wait->kept_ = false;
  --waiting_;
}

void StoreTable::wake(const std::string& key, Jobs& jobs) {
  wake(by_key_, key, jobs);
  if (by_prefix_.empty()) return;
  for (std::size_t size = 0; size <= key.size(); ++size)
    wake(by_prefix_, std::string_view(key).substr(0, size), jobs);
}

void StoreTable::wake(WaitsByText& waits, std::string_view text, Jobs& jobs) {
  const auto found = waits.find(text);
  if (found == waits.end()) return;
  Waits woken = std::move(found->second);
  waits.erase(found);
  waiting_ -= woken.size();
  for (auto& wait : woken) {
    wait->kept_ = false;
    this->wait(std::move(wait), jobs);
  }
}

template <class Which>
std::vector<std::shared_ptr<StoreWait>> StoreTable::take_waits(Which which) {
  std::vector<std::shared_ptr<StoreWait>> taken;
  for (const WaitsByText* waits : {&by_key_, &by_prefix_})
    for (const auto& [text, list] : *waits)
      for (const auto& wait : list)
        if (which(*wait)) taken.push_back(wait);
  for (const auto& wait : taken) drop(wait);
  return taken;
}

std::vector<std::shared_ptr<StoreWait>> StoreTable::take_late(Clock::time_point now) {
  return take_waits([&](const StoreWait& wait) { return wait.deadline() && *wait.deadline() <= now; });
}

std::vector<std::shared_ptr<StoreWait>> StoreTable::take_all() {
  return take_waits([](const StoreWait&) { return true; });
}

}  // namespace weft::rpc
