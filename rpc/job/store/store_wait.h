// StoreWait: a wait for a change of a StoreTable. It ends exactly once: with its result, by a cancellation,
// at its deadline, or at the end of the store, whichever is first.
//
// A table keeps a wait in one list at a time: the list of the key, or prefix, whose change the wait needs
// next. Thread-safety: over() and fail() may be called on any thread; the rest is guarded like the table.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>

namespace weft::rpc {

class StoreTable;

class WEFT_EXPORT StoreWait {
 public:
  // Selects a list of a table: the waits for changes of one key, or of the keys with one prefix.
  struct KeyOrPrefix {
    std::string text;        // the key or the prefix
    bool by_prefix = false;  // `text` is a prefix
  };

  // deadline: the owner of the table enforces it (StoreTable::take_late()); nullopt: no deadline. at: the
  // first list.
  StoreWait(std::optional<Clock::time_point> deadline, KeyOrPrefix at)
      : deadline_(deadline), at_(std::move(at)) {}
  virtual ~StoreWait() = default;

  bool over() const { return over_.load(std::memory_order_acquire); }
  void fail(const Error& error) {
    if (claim()) give(error);
  }
  const std::optional<Clock::time_point>& deadline() const { return deadline_; }  // constant

 protected:
  // Called before each completion. True for one caller only, which then completes the future.
  bool claim() { return !over_.exchange(true, std::memory_order_acq_rel); }
  // For a wait that is not satisfied: the key whose change it needs next.
  void move_to(std::string key) { at_.text = std::move(key); }

 private:
  friend class StoreTable;
  // Returns the completion if the wait is satisfied; called with the owner's lock held.
  virtual Callback answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) = 0;
  virtual void give(const Error& error) = 0;

  const std::optional<Clock::time_point> deadline_;
  std::atomic<bool> over_{false};
  KeyOrPrefix at_;
  bool kept_ = false;  // a table keeps the wait, in its list for at_, at position_
  std::list<std::shared_ptr<StoreWait>>::iterator position_;
};

namespace detail {

std::optional<Clock::time_point> deadline_of(const CallOptions& options);
// For errors: "'a'", or "'a' (the first of 3 keys)".
std::string keys_text(const std::vector<std::string>& keys);

// The three kinds of waits. A cancelled wait calls `drop(wait)`, which removes the wait from its owner.
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
StoreWaiting<StoreChanges> wait_for_change(std::string prefix, std::uint64_t after,
                                           const CallOptions& options, DropWait drop,
                                           std::shared_ptr<const Loop> loop);

}  // namespace detail

}  // namespace weft::rpc
