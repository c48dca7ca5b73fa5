// Frames as transports carry them: what is sent, and what has arrived with its attachments in their final
// storage. Thread-safety: values.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/wire/prefix.h>

#include <vector>

namespace weft::rpc {

// A frame that is sent.
struct OutboundFrame {
  Buffer head;  // the prefix and the header, as they travel
  // Borrowed until `sent` has run; where it never does, until these Buffers have gone, which may be a moment
  // after on_closed: lanes on other threads may still be reading them.
  std::vector<Buffer> attachments;
  Callback sent;  // runs on the connection's loop once the bytes have left; never after a failure

  std::uint64_t bytes() const {  // of memory
    std::uint64_t all = head.size();
    for (const Buffer& attachment : attachments) all += attachment.size();
    return all;
  }
};

// A frame that has arrived.
struct InboundFrame {
  Prefix prefix;
  Buffer header;  // 8-byte aligned
  std::vector<Buffer> attachments;
  std::shared_ptr<void> charge = nullptr;  // of Admission, where its size was announced there
};

// Where the memory of arriving attachments comes from, on the right device: called on the connection's loop.
using AttachmentAllocator = UniqueFunction<Buffer(std::size_t bytes)>;

// Bytes from one attachment's start to the next one's.
constexpr std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + Buffer::alignment - 1) / Buffer::alignment * Buffer::alignment;
}

// Checks the checksum, the segment table and the attachment table of a header against its prefix and the
// limits. Returns the attachments' sizes, or nothing where the body is empty: then IncomingMessage checks the
// table. Nothing of the header's size or more was allocated. Throws protocol_error or resource_exhausted.
WEFT_EXPORT std::vector<std::uint64_t> check_header(const Prefix& prefix,
                                                    std::span<const std::byte, Prefix::size> prefix_bytes,
                                                    std::span<const std::byte> header, const Limits& limits);

// Throws resource_exhausted where a frame exceeds what who has these limits takes: sent, it would end the
// connection and every other call on it. whose: the error says that this limit is exceeded.
WEFT_EXPORT void check_outgoing(const OutboundFrame& frame, const Limits& limits, const char* whose = "the");

}  // namespace weft::rpc
