// MemoryPool: memory for arriving attachments. It reuses blocks, whose pages are mapped already.
//
// Mapping a new page costs more than copying into it: large tensors arrive in new memory at 0.6 times the
// bandwidth of mapped memory (bench/README.md, `raw-fresh`). A block returns to the pool when the
// last copy of its Buffer is destroyed. If the pool no longer exists at that time, the block is freed. Up to
// max_kept bytes of unused blocks are kept for later attachments of about the same size. If there are more,
// the oldest blocks are freed first. Thread-safe.
#pragma once

#include <weft/rpc/core/buffer.h>

#include <cstdint>
#include <memory>

namespace weft::rpc {

class WEFT_EXPORT MemoryPool {
 public:
  // Counters of the pool.
  struct Counts {
    std::uint64_t hits = 0, misses = 0;  // allocations of at least `smallest` bytes
    std::uint64_t kept_bytes = 0;        // unused bytes that are kept now
    std::uint64_t lent_bytes = 0;        // bytes that Buffers use now
  };

  // Smaller blocks are allocated with malloc, which is as fast.
  static constexpr std::size_t smallest = 64 * 1024;

  // max_kept: the maximum of unused bytes that are kept.
  explicit MemoryPool(std::uint64_t max_kept);

  Buffer allocate(std::size_t size);  // uninitialized; throws std::bad_alloc
  Counts counts() const;              // a copy

  // The size of the block for `bytes`: rounded up to one of eight steps per power of two.
  static std::size_t block_size(std::size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
