// Slots: the data that higher layers attach to a call, a message or an agent. There is one value for each
// type.
//
// A linear search is faster than a map, because there are few entries. Thread-safety: none; the owner of the
// slots determines the thread.
#pragma once

#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

namespace weft::rpc {

class Slots {
 public:
  // The value of type T, or null. The pointer is valid until the next put() of that type.
  template <class T>
  T* find() const {
    for (const auto& [type, value] : entries_)
      if (type == typeid(T)) return static_cast<T*>(value.get());
    return nullptr;
  }
  template <class T>
  std::shared_ptr<T> share() const {
    for (const auto& [type, value] : entries_)
      if (type == typeid(T)) return std::static_pointer_cast<T>(value);
    return nullptr;
  }
  // Replaces the value of type T.
  template <class T>
  T& put(std::shared_ptr<T> value) {
    T& reference = *value;
    for (auto& [type, old] : entries_)
      if (type == typeid(T)) {
        old = std::move(value);
        return reference;
      }
    entries_.emplace_back(typeid(T), std::move(value));
    return reference;
  }

 private:
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> entries_;
};

}  // namespace weft::rpc
