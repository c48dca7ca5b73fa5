// RecentMap: a map that keeps only the latest keys. If it has `limit` keys, a new key replaces the oldest
// one.
//
// For what an agent remembers about peers that are gone: their number grows for as long as the agent runs.
// Thread-safety: none; a plain value.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <utility>

namespace weft::rpc {

// The number of lost incarnations of peers that an agent remembers. An incarnation is remembered because it
// may still run and return, for example after a stop of its process. So the number only has to exceed the
// peers that an agent loses while such a process is stopped, and it bounds the memory to a few megabytes. A
// session that this agent has forgotten is also detected by its number (rpc/endpoint/session.h).
inline constexpr std::size_t max_lost_remembered = std::size_t{1} << 16;

template <class Key, class Value>
class RecentMap {
 public:
  explicit RecentMap(std::size_t limit) : limit_(limit) {}
  RecentMap(const RecentMap&) = delete;  // order_ refers to entries_
  RecentMap& operator=(const RecentMap&) = delete;

  std::size_t size() const { return entries_.size(); }                    // keys
  bool contains(const Key& key) const { return entries_.contains(key); }  // whether the key is known
  // Null if the key is unknown.
  const Value* find(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second;
  }
  // The value of the key, and whether the key is new. Only a new key gets `value`.
  std::pair<Value&, bool> add(const Key& key, Value value = {}) {
    const auto [entry, is_new] = entries_.try_emplace(key, std::move(value));
    if (is_new) {
      order_.push_back(entry);
      if (order_.size() > limit_) {
        entries_.erase(order_.front());
        order_.pop_front();
      }
    }
    return {entry->second, is_new};
  }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::size_t limit_;
  std::map<Key, Value> entries_;
  std::deque<typename std::map<Key, Value>::iterator> order_;  // the oldest first
};

}  // namespace weft::rpc
