// Fifo<T>: a queue that keeps its memory, whereas std::deque allocates and frees memory while it is used.
// Thread-safety: none.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weft::rpc {

template <class T>
class Fifo {
 public:
  // Like the functions of std::deque.
  bool empty() const { return first_ == items_.size(); }
  std::size_t size() const { return items_.size() - first_; }
  T& operator[](std::size_t i) { return items_[first_ + i]; }  // 0: the front
  const T& operator[](std::size_t i) const { return items_[first_ + i]; }
  T& front() { return items_[first_]; }
  auto begin() const { return items_.begin() + static_cast<std::ptrdiff_t>(first_); }
  auto end() const { return items_.end(); }

  // Appends an item.
  template <class Item>
  void push(Item&& item) {
    // Consumed items are erased when they are half of the vector. Otherwise a queue that never becomes empty
    // would grow without limit.
    if (first_ >= 32 && first_ * 2 >= items_.size()) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    items_.push_back(std::forward<Item>(item));
  }
  // Inserts an item before the front. If there is no room, makes room for several items, so that the
  // amortized cost is constant.
  template <class Item>
  void push_front(Item&& item) {
    if (first_ == 0) {
      std::vector<T> moved(items_.size() / 4 + 4);
      first_ = moved.size();
      moved.reserve(first_ + items_.size() + 1);
      for (T& old : items_) moved.push_back(std::move(old));
      items_ = std::move(moved);
    }
    items_[--first_] = std::forward<Item>(item);
  }
  T pop() {
    T item = std::move(items_[first_]);
    drop();
    return item;
  }
  void drop() {  // removes the front
    if (first_ + 1 == items_.size()) {
      items_.clear();
      first_ = 0;
    } else {
      items_[first_++] = T{};
    }
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
};

}  // namespace weft::rpc
