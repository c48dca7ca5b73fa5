// ShmSegment: memory that two processes share. One of them created it, and neither trusts the other.
//
// A segment is sealed memory with one control page and a data region whose size is a power
// of two. The data region is mapped twice in a row, so that a copy of at most its capacity never wraps. The
// destructor unmaps the segment. Thread-safety: a value; the other process may change the bytes at any time.
#pragma once

#include <weft/rpc/core/descriptor.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace weft::rpc {

// Sealed memory: a memfd of fixed size, to share with processes that are not trusted. Without the seal, a
// process could truncate the file and so kill its readers (SIGBUS). Pages are allocated when they are first
// written, so unused memory costs nothing.
//
// Creates zeroed memory. Throws unsupported if the system lacks sealed memfds, resource_exhausted if it has
// no descriptor left. /proc shows `name`.
WEFT_EXPORT Descriptor make_sealed_memory(const char* name, std::size_t bytes);

// Returns the size of memory that another process created. Throws protocol_error if the memory was not
// created as by make_sealed_memory().
WEFT_EXPORT std::uint64_t expect_sealed_memory(const Descriptor& memory);

[[noreturn]] WEFT_EXPORT void refuse_memory(const std::string& what);  // throws protocol_error

class WEFT_EXPORT ShmSegment {
 public:
  static constexpr std::size_t smallest = 64U << 10, largest = std::size_t{1} << 30;  // capacities

  // The smallest capacity for `bytes`: a power of two within the limits above.
  static std::size_t capacity_for(std::size_t bytes);

  // Throws invalid_argument for an invalid capacity, unsupported if the system lacks sealed memfds, and
  // resource_exhausted if it has no descriptor or address space left.
  static ShmSegment create(std::size_t capacity);
  // Maps a segment that a peer created. Throws protocol_error if the segment was not created as by create(),
  // or has more than `max_bytes` bytes of data.
  static ShmSegment open(Descriptor memory, std::size_t max_bytes);

  std::byte* control() const { return base_.get(); }             // one page, initially zero
  std::byte* data() const { return base_.get() + page_size(); }  // 2 * capacity() bytes: the region twice
  std::size_t capacity() const { return capacity_; }             // bytes of the data region

  // The descriptor of the memfd, which the peer maps. After it has been sent it may be closed, because the
  // mapping does not depend on it.
  int descriptor() const { return memory_.get(); }
  void close_descriptor() { memory_.reset(); }

  static std::size_t page_size();  // bytes, of this system

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* base) const;
  };
  ShmSegment(Descriptor memory, std::size_t capacity);  // maps

  Descriptor memory_;
  std::unique_ptr<std::byte, Unmap> base_;
  std::size_t capacity_;
};

}  // namespace weft::rpc
