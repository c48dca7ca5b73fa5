// ShmOptions: the options of a process for its connections through shared memory.
#pragma once

#include <chrono>
#include <cstddef>

namespace weft::rpc {

struct ShmOptions {
  // The size of this side's ring; rounded up to a power of two, at least 64 KiB.
  std::size_t ring_bytes = 1U << 20;
  std::size_t max_ring_bytes = 64U << 20;  // the maximum size of the other side's ring
  bool bulk = true;  // each side reads the other's memory, if the system permits it to both
  // The sizes of attachments that use bulk, in bytes: the greater begin and the lesser end of the two sides
  // apply. Data larger than a core's cache is faster through the rings, where the copies of both sides
  // overlap.
  std::size_t bulk_begin = 64U << 10;
  std::size_t bulk_end = 4U << 20;

  std::chrono::nanoseconds timeout = std::chrono::seconds{5};  // of the exchange of hellos
  // The maximum number of connections of one transport at a time, in both directions, including connections
  // in their handshake. Beyond this maximum, connect() fails with resource_exhausted, and an incoming
  // connection is closed at once, before anything is allocated for it.
  std::size_t max_connections = static_cast<std::size_t>(-1);
};

}  // namespace weft::rpc
