// ShmOptions: what a process brings to its connections through shared memory.
#pragma once

#include <chrono>
#include <cstddef>

namespace weft::rpc {

struct ShmOptions {
  std::size_t ring_bytes = 1U << 20;  // for what this side sends; rounded up to a power of two, from 64 KiB
  std::size_t max_ring_bytes = 64U << 20;  // that the other side's may have
  bool bulk = true;                        // by the memory of the other process, where the system lets both
  // Attachments of these sizes go by bulk, in bytes: the greater begin and the lesser end of the two sides
  // hold. What is larger than a core's cache is faster through the rings, where both sides' copies overlap.
  std::size_t bulk_begin = 64U << 10;
  std::size_t bulk_end = 4U << 20;
  std::chrono::nanoseconds timeout = std::chrono::seconds{5};  // until both sides have said hello
  // Of one transport at a time, made or in the making, by either side. Beyond, connect() fails with
  // resource_exhausted, and who comes in is closed at once, before anything is made for it.
  std::size_t max_connections = static_cast<std::size_t>(-1);
};

}  // namespace weft::rpc
