// StoreTable: the keys of a store and those who wait for them; what the backends that keep data themselves
// are made of.
//
// No lock, no clock, no thread: its owner guards it. Whatever answers somebody is handed out as a Job, to be
// run once the owner's lock is released.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/store/store.h>

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <utility>

namespace weft::rpc {

class StoreTable;

// Somebody who waits: one entry, ended exactly once, by whoever comes first.
class WEFT_EXPORT StoreWait {
 public:
  explicit StoreWait(std::optional<Clock::time_point> deadline) : deadline_(deadline) {}
  virtual ~StoreWait() = default;

  // Any thread.
  bool over() const { return over_.load(std::memory_order_acquire); }
  void fail(const Error& error) {
    if (claim()) give(error);
  }
  const std::optional<Clock::time_point>& deadline() const { return deadline_; }

 protected:
  bool claim() { return !over_.exchange(true, std::memory_order_acq_rel); }

 private:
  friend class StoreTable;
  virtual bool concerns(const std::string& key) const = 0;
  // The answer, where what was waited for has come; under the owner's lock.
  virtual Job answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) = 0;
  virtual void give(const Error& error) = 0;

  std::optional<Clock::time_point> deadline_;
  std::atomic<bool> over_{false};
};

class WEFT_EXPORT StoreTable {
 public:
  using Jobs = std::vector<Job>;

  const std::string* find(const std::string& key) const;
  std::optional<std::string> copy(const std::string& key) const;
  StoreView view(const std::string& prefix) const;
  bool changed(const std::string& prefix, std::uint64_t after) const;
  // What add() stores; throws as it does.
  std::int64_t sum(const std::string& key, std::int64_t delta) const;

  // Changes; the answers to those who waited for them are added to jobs.
  void set(const std::string& key, std::string value, Jobs& jobs);
  bool remove(const std::string& key, Jobs& jobs);

  // Waits: answered at once, or kept until it is answered or dropped.
  void wait(std::shared_ptr<StoreWait> wait, Jobs& jobs);
  void drop(const std::shared_ptr<StoreWait>& wait);
  std::size_t waits() const { return waits_.size(); }
  std::vector<std::shared_ptr<StoreWait>> take_late(Clock::time_point now);
  std::vector<std::shared_ptr<StoreWait>> take_all();

 private:
  struct Entry {
    std::string value;
    std::uint64_t version;
  };
  static constexpr std::size_t most_removals = 1024;
  void changed_now(const std::string& key, Jobs& jobs);

  std::uint64_t version_ = 0;
  std::map<std::string, Entry> entries_;
  // The latest removals, oldest first: a watcher must learn of them. Those up to forgotten_ are no longer
  // known.
  std::deque<std::pair<std::uint64_t, std::string>> removals_;
  std::uint64_t forgotten_ = 0;
  std::list<std::shared_ptr<StoreWait>> waits_;
};

namespace detail {

std::optional<Clock::time_point> deadline_of(const CallOptions& options);

// The three ways to wait. `drop(wait)` is what a cancelled one asks of its owner.
template <class T>
struct StoreWaiting {
  std::shared_ptr<StoreWait> wait;
  Future<T> future;
};
using DropWait = std::function<void(const std::shared_ptr<StoreWait>&)>;
StoreWaiting<std::string> wait_for_value(std::string key, const CallOptions& options, DropWait drop,
                                         std::shared_ptr<const Loop> loop);
StoreWaiting<void> wait_for_keys(std::vector<std::string> keys, const CallOptions& options, DropWait drop,
                                 std::shared_ptr<const Loop> loop);
StoreWaiting<StoreView> wait_for_change(std::string prefix, std::uint64_t after, const CallOptions& options,
                                        DropWait drop, std::shared_ptr<const Loop> loop);

}  // namespace detail

}  // namespace weft::rpc
