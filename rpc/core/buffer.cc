#include <weft/rpc/core/buffer.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace weft::rpc {
namespace {

constexpr std::size_t max_joined = 16 * 1024;

}  // namespace

Buffer Buffer::allocate(std::size_t size) {
  if (size == 0) return {};
  if (size <= max_joined) {
    // One allocation for the bytes and the reference count.
    auto owner = std::make_shared_for_overwrite<std::byte[]>(size + alignment - 1);
    void* aligned = owner.get();
    std::size_t space = size + alignment - 1;
    std::align(alignment, size, aligned, space);
    return Buffer(std::move(owner), static_cast<std::byte*>(aligned), size);
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* memory = rounded < size ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return Buffer(std::shared_ptr<void>(memory, std::free), static_cast<std::byte*>(memory), size);
}

Buffer Buffer::copy(std::span<const std::byte> bytes) {
  Buffer buffer = allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

}  // namespace weft::rpc
