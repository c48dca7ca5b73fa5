// ShmSegment: memory that two processes share, one of which made it and neither of which trusts the other.
//
// A memfd of one control page and a data region of a power of two, its size sealed for good: a file that its
// maker could truncate would kill whoever reads it (SIGBUS). The data region is mapped twice in a row, so
// that a copy of up to its capacity never wraps. Nothing is touched before it is used: an idle segment costs
// the pages that somebody has written. Unmapped with its owner. Thread-safety: a value; the bytes are those
// of another process at any time.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/shm/descriptor.h>

#include <cstddef>

namespace weft::rpc {

class WEFT_EXPORT ShmSegment {
 public:
  static constexpr std::size_t smallest = 64U << 10, largest = std::size_t{1} << 30;  // capacities

  // The least capacity that holds so many bytes: a power of two within the bounds above.
  static std::size_t capacity_for(std::size_t bytes);

  // Throws invalid_argument for a capacity that is none, unsupported where the system lacks sealed memfds,
  // resource_exhausted where it has no descriptor or address space left.
  static ShmSegment create(std::size_t capacity);
  // One that a peer made. Throws protocol_error where it is not what create() makes or holds more than
  // `most` bytes of data.
  static ShmSegment open(Descriptor memory, std::size_t most);

  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&& other) noexcept;
  ~ShmSegment();

  std::byte* control() const { return base_; }             // one page, zeros at first
  std::byte* data() const { return base_ + page_size(); }  // 2 * capacity() bytes, the second half the first
  std::size_t capacity() const { return capacity_; }

  // What the peer maps; needed only until it was handed over: the mapping stays without it.
  int descriptor() const { return memory_.get(); }
  void close_descriptor() { memory_.reset(); }

  static std::size_t page_size();

 private:
  ShmSegment(Descriptor memory, std::size_t capacity);  // maps
  void unmap();

  Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace weft::rpc
