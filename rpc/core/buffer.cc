#include <weft/rpc/core/buffer.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace weft::rpc {

Buffer Buffer::allocate(std::size_t size) {
  if (size == 0) return {};
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
