// Frames, as transports carry them: an outgoing frame, and a received one with its attachments in their final
// memory. A frame begins with its prefix of 32 bytes, little-endian (docs/internals/wire_protocol.md):
//
//   0 magic "WEFT" | 4 version u8 | 5 kind u8 | 6 flags u16 | 8 header_words u32 | 12 crc32c u32 |
//   16 call_id u64 | 24 body_bytes u64
//
// The checksum covers the prefix, with its own field as zero, and the header. decode() performs all checks
// that do not need the header. Thread-safety: values.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/wire/limits.h>

#include <cstdint>
#include <span>
#include <vector>

namespace weft::rpc {

// The kinds of frames.
enum class FrameKind : std::uint8_t {
  hello = 1,
  request = 2,
  reply = 3,
  cancel = 4,
  goodbye = 5,
  ping = 6,
  pong = 7,
  credit = 8,
  lane = 9,       // call_id: rpc/endpoint/link_lanes.cc
  received = 10,  // call_id: the number of numbered frames that this side has accepted
  resume = 11,    // the connection that a session uses (rpc/endpoint/session.h)
};

namespace frame_flags {
inline constexpr std::uint16_t notify = 1;       // a request without a reply
inline constexpr std::uint16_t acknowledge = 4;  // the sender waits for the acknowledgement of this frame
inline constexpr std::uint16_t known = notify | acknowledge;  // all flags
}  // namespace frame_flags

// The prefix, decoded.
struct Prefix {
  static constexpr std::size_t size = 32;
  static constexpr std::uint8_t frame_version = 1;

  // The fields above. header_words: the size in words of 8 bytes. call_id: see also FrameKind.
  FrameKind kind = FrameKind::ping;
  std::uint16_t flags = 0;
  std::uint32_t header_words = 0;
  std::uint32_t checksum = 0;
  std::uint64_t call_id = 0;
  std::uint64_t body_bytes = 0;

  // Frames other than requests and replies have no body, and at most this many bytes of header.
  static constexpr std::size_t max_control_header = 16 * 1024;
  bool carries_call() const { return kind == FrameKind::request || kind == FrameKind::reply; }
  // Whether a session numbers the frame, and sends it again after a lost connection.
  bool is_numbered() const {
    return carries_call() || kind == FrameKind::cancel || kind == FrameKind::credit;
  }
  std::uint64_t message_bytes() const { return header_words * std::uint64_t{8} + body_bytes; }
};

// An encoded prefix.
using PrefixBytes = std::span<std::byte, Prefix::size>;

// Encodes the prefix with its checksum field.
WEFT_EXPORT void encode(const Prefix& prefix, PrefixBytes out);
// Throws protocol_error if the prefix is malformed, or resource_exhausted if the announced sizes exceed a
// limit.
WEFT_EXPORT Prefix decode(std::span<const std::byte, Prefix::size> bytes, const Limits& limits);

// Whether a connection begins with a TLS record instead of a frame. bytes: its first bytes, at least 2.
WEFT_EXPORT bool begins_like_tls(std::span<const std::byte> bytes);

// The checksum of a frame with this encoded prefix and header; the prefix's checksum field counts as zero.
WEFT_EXPORT std::uint32_t frame_checksum(std::span<const std::byte, Prefix::size> prefix,
                                         std::span<const std::byte> header);

// A frame that is sent.
struct OutboundFrame {
  Buffer head;  // the encoded prefix and header
  // Borrowed until `sent` has run. If `sent` never runs, they are borrowed until these Buffers are destroyed.
  std::vector<Buffer> attachments;
  Callback sent;  // runs on the connection's loop when all bytes have been sent; never after a failure

  std::uint64_t bytes() const {  // bytes of memory
    std::uint64_t all = head.size();
    for (const Buffer& attachment : attachments) all += attachment.size();
    return all;
  }
};

// A received frame.
struct InboundFrame {
  Prefix prefix;
  Buffer header;  // 8-byte aligned
  std::vector<Buffer> attachments;
  std::shared_ptr<void> charge = nullptr;  // the charge in Admission; null: none
};

// The distance in bytes from the start of an attachment to the next one.
constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + Buffer::alignment - 1) / Buffer::alignment * Buffer::alignment;
}

// Checks the checksum, the segment table and the attachment table of a header against its prefix and the
// limits. Returns the sizes of the attachments. If the body is empty, the returned vector is empty, because
// then IncomingMessage checks the table. Allocates less memory than the header's size. Throws protocol_error
// or resource_exhausted.
WEFT_EXPORT std::vector<std::uint64_t> check_header(const Prefix& prefix,
                                                    std::span<const std::byte, Prefix::size> prefix_bytes,
                                                    std::span<const std::byte> header, const Limits& limits);

// Throws resource_exhausted if the frame exceeds `limits` of its receiver: sending it would close the
// connection and fail all other calls of its session. whose: the word before "limit" in the error.
WEFT_EXPORT void check_outgoing(const OutboundFrame& frame, const Limits& limits, const char* whose = "the");

}  // namespace weft::rpc
