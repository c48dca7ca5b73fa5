// MemoryPool: memory for arriving attachments. It reuses blocks, whose pages are mapped already.
//
// Mapping a new page costs more than copying into it: large tensors arrive in new memory with 0.6 of the
// bandwidth of mapped memory (docs/benchmarks_details.md, `raw-fresh`). A block returns to the pool when the
// last copy of its Buffer is destroyed, which may be after the pool. Up to max_kept bytes are kept for later
// attachments of about the same size; the oldest are freed first. Thread-safe.
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
    std::uint64_t kept_bytes = 0;        // kept now, not used by a Buffer
    std::uint64_t lent_bytes = 0;        // used by Buffers now
  };

  static constexpr std::size_t smallest = 64 * 1024;  // for smaller blocks, malloc is as fast

  // max_kept: the maximum of unused bytes that are kept.
  explicit MemoryPool(std::uint64_t max_kept);
  ~MemoryPool();

  Buffer allocate(std::size_t size);  // uninitialized; throws std::bad_alloc
  void trim();                        // frees all unused blocks
  Counts counts() const;              // a copy

  // The size of the block for `bytes`: rounded up to one of eight steps per power of two.
  static std::size_t block_size(std::size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
