#include <weft/parallel/sharded/internal/buffer_pool.h>

#include <algorithm>

namespace weft::sharded {

void BufferPool::announce(const at::TensorOptions& options, std::int64_t elements) {
  Buffers& buffers = buffers_[key_of(options)];
  buffers.item_size = options.dtype().itemsize();
  if (elements <= buffers.elements) return;
  buffers.elements = elements;
  buffers.made -= buffers.free.size();
  buffers.free.clear();
}

at::Tensor BufferPool::take(const at::TensorOptions& options, std::int64_t elements) {
  Buffers& buffers = buffers_.at(key_of(options));
  if (buffers.free.empty()) {
    ++buffers.made;
    buffers.free.push_back(group_.empty({buffers.elements}, options));
  }
  const at::Tensor whole = std::move(buffers.free.back());
  buffers.free.pop_back();
  return whole.narrow(0, 0, elements);
}

void BufferPool::give_back(const at::Tensor& buffer) {
  Buffers& buffers = buffers_.at(key_of(buffer.options()));
  const auto needed = static_cast<std::size_t>(buffer.storage_offset() + buffers.elements);
  if (buffer.storage().nbytes() < needed * buffers.item_size) {  // from before announce()
    --buffers.made;
    return;
  }
  buffers.free.push_back(buffer.as_strided({buffers.elements}, {1}, buffer.storage_offset()));
}

bool BufferPool::has_free(const at::TensorOptions& options) const {
  return !buffers_.at(key_of(options)).free.empty();
}

std::size_t BufferPool::made(const at::TensorOptions& options) const {
  const auto found = buffers_.find(key_of(options));
  return found == buffers_.end() ? 0 : found->second.made;
}

std::size_t BufferPool::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, buffers] : buffers_)
    bytes += buffers.made * buffers.item_size * static_cast<std::size_t>(buffers.elements);
  return bytes;
}

}  // namespace weft::sharded
