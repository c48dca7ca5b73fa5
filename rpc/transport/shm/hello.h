// What the two sides of a shared-memory connection tell each other before its rings are used. Pure.
//
// Both say the same in the same order over the Unix socket, numbers in little-endian:
//   ShmHello    64 bytes, with one descriptor: the segment that its sender writes to;
//   ShmProof    16 bytes, where both hellos offer bulk: where the other's nonce now lies in the sender's
//   memory; ShmVerdict  16 bytes, after a proof: whether it held. Bulk is used where both did.
// From then on each byte on the socket is a knock (its value means nothing), and its end is the connection's.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/bulk_range.h>
#include <weft/rpc/transport/shm/peer_memory.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::rpc {

struct WEFT_EXPORT ShmHello {
  static constexpr std::size_t size = 64;
  using Bytes = std::array<std::byte, size>;
  static constexpr std::uint16_t current = 1;

  std::uint16_t version = current;  // the newest and the oldest that the sender speaks
  std::uint16_t oldest = current;
  bool bulk = false;             // the sender would read, and be read
  std::uint64_t capacity = 0;    // of its segment
  std::uint64_t bulk_begin = 0;  // of the sizes that go by bulk, the greater of the two
  std::uint64_t bulk_end = 0;    // the lesser of the two; 0: none, whatever the other says
  PeerMemory::Nonce nonce{};     // for the other to place

  Bytes encode() const;
  // Throws protocol_error: no hello, no version in common, or numbers that cannot be.
  static ShmHello decode(std::span<const std::byte, size> bytes);

  BulkRange agreed_bulk(const ShmHello& theirs) const;

  friend bool operator==(const ShmHello&, const ShmHello&) = default;
};

struct WEFT_EXPORT ShmProof {
  static constexpr std::size_t size = 16;
  using Bytes = std::array<std::byte, size>;

  std::uint64_t address = 0;

  Bytes encode() const;
  static ShmProof decode(std::span<const std::byte, size> bytes);
};

struct WEFT_EXPORT ShmVerdict {
  static constexpr std::size_t size = 16;
  using Bytes = std::array<std::byte, size>;

  bool readable = false;

  Bytes encode() const;
  static ShmVerdict decode(std::span<const std::byte, size> bytes);
};

}  // namespace weft::rpc
