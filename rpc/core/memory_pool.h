// MemoryPool: where the memory of arriving attachments comes from: blocks that were used before, and are
// therefore mapped and touched already.
//
// A page of fresh memory costs more than copying into it: large tensors arrive in fresh memory with 0.6 of
// the bandwidth that touched memory has (docs/benchmarks.md, `raw-fresh`). A block returns when the last copy
// of its Buffer goes, which may be after the pool; so many bytes are kept for the next attachment of about
// the size, the oldest go first. Thread-safe.
#pragma once

#include <weft/rpc/core/buffer.h>

#include <cstdint>
#include <memory>

namespace weft::rpc {

class WEFT_EXPORT MemoryPool {
 public:
  // What the pool has done and has.
  struct Counts {
    std::uint64_t hits = 0, misses = 0;  // of blocks that are large enough to be kept
    std::uint64_t kept_bytes = 0;        // at this moment, by no Buffer
    std::uint64_t lent_bytes = 0;        // at this moment, by Buffers
  };

  static constexpr std::size_t smallest = 64 * 1024;  // below, malloc is as fast

  // max_kept: bytes that are kept while no Buffer uses them.
  explicit MemoryPool(std::uint64_t max_kept);
  ~MemoryPool();

  Buffer allocate(std::size_t size);  // uninitialised; std::bad_alloc
  void trim();                        // gives back all that is kept
  Counts counts() const;              // a copy

  // What a block for so many bytes has: the next of eight steps to the power of two.
  static std::size_t block_size(std::size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
