// StoreTable: the keys, leases and waits of a store; the common part of the backends that keep data
// themselves.
//
// It has no lock, clock or thread: its owner locks it, and passes the time. Results of waits are returned as
// Callbacks, which the owner runs after it has released its lock.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/job/store/store_wait.h>

#include <deque>
#include <list>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace weft::rpc {

namespace detail {

// The sum that add() stores if the key holds `value` (null: the key does not exist); throws as add() does.
WEFT_EXPORT std::int64_t sum_of(const std::string& key, const std::string* value, std::int64_t delta);
WEFT_EXPORT void check_ttl(std::chrono::nanoseconds ttl);  // throws as grant() does
WEFT_EXPORT Error lease_lost(LeaseId lease);

}  // namespace detail

class WEFT_EXPORT StoreTable {
 public:
  using Jobs = std::vector<Callback>;  // completions of waits, which the owner runs after it has unlocked
  // One change of another store, for mirror().
  struct Change {
    std::string key;
    std::optional<std::string> value;  // nullopt: the key was removed
  };

  // The value of a key; null or nullopt: it does not exist. The pointer is valid until the next change.
  const std::string* find(const std::string& key) const;
  std::optional<std::string> copy(const std::string& key) const;
  // The keys with that prefix, and the version of the whole table (StoreView::version).
  StoreView view(const std::string& prefix) const;
  std::uint64_t version() const { return version_; }
  // Whether watch() has changes to return, and these changes.
  bool changed(const std::string& prefix, std::uint64_t after) const;
  StoreChanges changes(const std::string& prefix, std::uint64_t after) const;
  // The sum that add() stores; throws as add() does.
  std::int64_t sum(const std::string& key, std::int64_t delta) const {
    return detail::sum_of(key, find(key), delta);
  }

  // Changes. The completions of waits are appended to jobs.
  void set(const std::string& key, std::string value, LeaseId lease, Jobs& jobs);  // throws lease_lost
  bool remove(const std::string& key, Jobs& jobs);  // returns whether the key existed
  // mirror(): for a copy of another store; applies all changes of one version. The copy may have only the
  // changes after some version. restart() sets that version, and wakes all waits, so that they read the other
  // store again.
  void mirror(std::uint64_t version, std::vector<Change> changes, Jobs& jobs);
  void restart(std::uint64_t version, Jobs& jobs);
  // The oldest version after which all changes are known.
  std::uint64_t known_since() const { return forgotten_; }

  // Leases. Their clock advances with tick(); call it every tick_interval() while leases exist. A longer
  // delay is considered a stall of the owner, and does not count.
  void grant(LeaseId lease, std::chrono::nanoseconds ttl, Clock::time_point now);
  void renew(LeaseId lease, Clock::time_point now);  // throws lease_lost
  // Removes the lease and its keys. No effect if the lease has ended.
  void end_lease(LeaseId lease, Jobs& jobs);

  // The leases that have not ended.
  bool has_lease(LeaseId lease) const { return leases_.contains(lease); }
  std::size_t leases() const { return leases_.size(); }  // the number of leases
  void tick(Clock::time_point now);                      // does not end leases: see due()
  // A quarter of the shortest time of a lease, between 10 ms and 1 s.
  std::chrono::nanoseconds tick_interval() const { return interval_; }

  std::vector<LeaseId> due() const;  // leases that have expired

  // Waits: each completes at once, or is kept until it completes or is dropped.
  void wait(std::shared_ptr<StoreWait> wait, Jobs& jobs);
  void drop(const std::shared_ptr<StoreWait>& wait);  // no effect if the wait is not kept

  // waits(): the number of waits that are kept. take_late() removes and returns the waits whose deadline has
  // passed. take_all() removes and returns all waits. The caller completes them.
  std::size_t waits() const { return waiting_; }
  std::vector<std::shared_ptr<StoreWait>> take_late(Clock::time_point now);
  std::vector<std::shared_ptr<StoreWait>> take_all();

 private:
  struct Entry {
    std::string value;
    std::uint64_t version;
    LeaseId lease;
  };
  struct Lease {
    std::chrono::nanoseconds ttl, end;  // by the leases' clock
    std::set<std::string> keys;
  };
  using Waits = std::list<std::shared_ptr<StoreWait>>;
  using WaitsByText = std::map<std::string, Waits, std::less<>>;
  static constexpr std::size_t max_removals = 1024;

  bool unknown(std::uint64_t after) const;  // whether some changes after `after` are unknown
  void put(const std::string& key, std::string value, LeaseId lease, std::uint64_t version);
  bool take(const std::string& key, std::uint64_t version);
  void remember_removal(const std::string& key, std::uint64_t version);
  std::chrono::nanoseconds end_of(std::chrono::nanoseconds ttl) const;
  void leave_lease(const std::string& key, LeaseId lease);
  void wake(const std::string& key, Jobs& jobs);
  void wake(WaitsByText& waits, std::string_view text, Jobs& jobs);
  WaitsByText& waits_of(const StoreWait& wait) { return wait.at_.by_prefix ? by_prefix_ : by_key_; }
  void keep(std::shared_ptr<StoreWait> wait);
  template <class Which>
  std::vector<std::shared_ptr<StoreWait>> take_waits(Which which);

  std::uint64_t version_ = 1;
  std::map<std::string, Entry> entries_;
  std::set<std::pair<std::uint64_t, std::string_view>> by_version_;  // versions and keys of entries_
  // The latest removals, oldest first, for watchers. Removals up to forgotten_ are no longer known.
  std::deque<std::pair<std::uint64_t, std::string>> removals_;
  std::uint64_t forgotten_ = 1;
  bool copy_ = false;  // true: a copy of another store, which may have a later version

  std::map<LeaseId, Lease> leases_;
  std::set<std::pair<std::chrono::nanoseconds, LeaseId>> ends_;
  std::chrono::nanoseconds lease_clock_{0};
  std::optional<Clock::time_point> ticked_;
  std::chrono::nanoseconds interval_ = slowest_tick;
  static constexpr std::chrono::nanoseconds slowest_tick = std::chrono::seconds{1};
  static constexpr std::chrono::nanoseconds fastest_tick = std::chrono::milliseconds{10};

  WaitsByText by_key_, by_prefix_;
  std::size_t waiting_ = 0;
};

}  // namespace weft::rpc
