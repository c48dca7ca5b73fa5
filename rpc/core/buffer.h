// Buffer: reference-counted bytes that are sent as an attachment. The bytes may be in any kind of memory,
// which `owner` keeps alive.
//
// Copies share the bytes. allocate() aligns to 64 bytes, as tensors require. Thread-safety: a value; the
// users of the bytes must synchronize their access.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <memory>
#include <span>

namespace weft::rpc {

class WEFT_EXPORT Buffer {
 public:
  static constexpr std::size_t alignment = 64;

  Buffer() = default;
  Buffer(std::shared_ptr<void> owner, std::byte* data, std::size_t size)
      : owner_(std::move(owner)), data_(data), size_(size) {}

  static Buffer allocate(std::size_t size);              // uninitialized; throws std::bad_alloc
  static Buffer copy(std::span<const std::byte> bytes);  // throws std::bad_alloc

  // The bytes, which all copies share, and their owner.
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  const std::shared_ptr<void>& owner() const { return owner_; }

 private:
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace weft::rpc
