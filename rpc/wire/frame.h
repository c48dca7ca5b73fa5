// Frames, as transports carry them: an outgoing frame, and a received one with its attachments in their final
// memory. Thread-safety: values.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/wire/prefix.h>

#include <vector>

namespace weft::rpc {

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
