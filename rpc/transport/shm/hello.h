// The messages that the two sides of a shared-memory connection exchange before they use its rings. No I/O.
//
// Both sides send the same messages in the same order over the Unix socket, with numbers in little-endian:
//   ShmHello    64 bytes, with one descriptor: the segment that the sender writes to.
//   proof       16 bytes, if both hellos offer bulk: the address at which the sender keeps the other's nonce.
//   verdict     16 bytes, after a proof: 1 if it was valid, otherwise 0. Bulk is used if both proofs were
//   valid.
// After that, each byte on the socket is a wake-up (its value is ignored), and the end of the socket is the
// end of the connection.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/shm/peer_memory.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::rpc {

struct WEFT_EXPORT ShmHello {
  static constexpr std::size_t size = 64;
  using Bytes = std::array<std::byte, size>;  // on the socket
  static constexpr std::uint16_t current = 1;

  // The newest and the oldest version that the sender supports.
  std::uint16_t version = current;
  std::uint16_t oldest = current;

  bool bulk = false;             // true: the sender offers bulk (PeerMemory)
  std::uint64_t capacity = 0;    // bytes of the sender's segment
  std::uint64_t bulk_begin = 0;  // the minimum size of bulk; the greater value of the two sides applies
  std::uint64_t bulk_end = 0;    // the end of the sizes of bulk; the lesser value applies; 0: unlimited
  PeerMemory::Nonce nonce{};     // the receiver places it in its memory

  Bytes encode() const;  // does not check the fields
  // Throws protocol_error if the bytes are not a hello, the two sides have no common version, or a field is
  // invalid.
  static ShmHello decode(std::span<const std::byte, size> bytes);

  // The sizes of bulk, if both sides offer it; equal on both sides. It may be empty.
  BulkRange agreed_bulk(const ShmHello& theirs) const;

  friend bool operator==(const ShmHello&, const ShmHello&) = default;
};

// A proof or a verdict.
struct WEFT_EXPORT ShmAnswer {
  static constexpr std::size_t size = 16;
  using Bytes = std::array<std::byte, size>;  // on the socket
  // The first eight bytes.
  enum Kind : std::uint64_t {
    proof = 0x666f6f72702d6d68,    // "hm-proof"
    verdict = 0x7463696472657600,  // "\0verdict"
  };

  Kind kind;            // what is answered
  std::uint64_t value;  // the proof, or the verdict

  Bytes encode() const;  // kind and value
  // Returns the value. Throws protocol_error if the bytes are not an answer of this kind.
  static std::uint64_t decode(Kind kind, std::span<const std::byte, size> bytes);
};

}  // namespace weft::rpc
