// IdMap<T>: a map whose keys are ids that another agent may have chosen, for example the ids of calls in
// flight.
//
// It uses open addressing, so that an entry needs no allocation. The seed must be random and secret: a peer
// that knows the seed can choose ids that collide, so that each operation searches all entries.
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace weft::rpc {

template <class T>
class IdMap {
 public:
  explicit IdMap(std::uint64_t seed) : seed_(seed) {}

  // The number of entries, and whether an entry has this id.
  std::size_t size() const { return size_; }
  bool contains(std::uint64_t id) const { return size_ != 0 && slots_[place_of(id)].used; }
  T* find(std::uint64_t id) {
    if (size_ == 0) return nullptr;
    Slot& slot = slots_[place_of(id)];
    return slot.used ? &slot.value : nullptr;
  }
  // Inserts an entry. The id must not exist in the map.
  void insert(std::uint64_t id, T value) {
    if (4 * (size_ + 1) > 3 * slots_.size()) resize(slots_.empty() ? smallest : 2 * slots_.size());
    place(id, std::move(value));
    ++size_;
  }
  std::optional<T> take(std::uint64_t id) {
    if (size_ == 0) return std::nullopt;
    std::size_t hole = place_of(id);
    if (!slots_[hole].used) return std::nullopt;
    std::optional<T> taken(std::move(slots_[hole].value));
    --size_;
    // Later entries move into the hole, unless the hole is before their home slot.
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t next = (hole + 1) & mask; slots_[next].used; next = (next + 1) & mask) {
      if (((next - home_of(slots_[next].id)) & mask) < ((next - hole) & mask)) continue;
      slots_[hole].id = slots_[next].id;
      slots_[hole].value = std::move(slots_[next].value);
      hole = next;
    }
    slots_[hole].used = false;
    slots_[hole].value = T{};
    if (size_ == 0 && slots_.size() > max_kept) slots_ = {};
    return taken;
  }
  // Calls `visit` for each entry, in unspecified order. `visit` must not change the map.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_)
      if (slot.used) visit(slot.id, slot.value);
  }
  // Removes and returns all entries, sorted by id.
  std::vector<std::pair<std::uint64_t, T>> take_all() {
    std::vector<std::pair<std::uint64_t, T>> all;
    for (Slot& slot : std::exchange(slots_, {}))
      if (slot.used) all.emplace_back(slot.id, std::move(slot.value));
    size_ = 0;
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return all;
  }

 private:
  struct Slot {
    std::uint64_t id = 0;
    bool used = false;
    T value{};
  };
  static constexpr std::size_t smallest = 8;
  static constexpr std::size_t max_kept = 1024;  // slots of an empty map; more are freed

  std::size_t home_of(std::uint64_t id) const {
    const std::uint64_t mixed = (id ^ seed_) * 0x9e3779b97f4a7c15ULL;
    return static_cast<std::size_t>((mixed ^ mixed >> 32) * 0xd6e8feb86659fd93ULL >> 32) &
           (slots_.size() - 1);
  }
  // The slot of the id, or the slot into which it would be inserted.
  std::size_t place_of(std::uint64_t id) const {
    std::size_t at = home_of(id);
    while (slots_[at].used && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void resize(std::size_t slots) {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
    for (Slot& slot : old)
      if (slot.used) place(slot.id, std::move(slot.value));
  }
  void place(std::uint64_t id, T&& value) {
    Slot& slot = slots_[place_of(id)];
    slot.id = id;
    slot.used = true;
    slot.value = std::move(value);
  }

  const std::uint64_t seed_;
  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace weft::rpc
