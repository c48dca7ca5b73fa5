#include <weft/rpc/wire/frame.h>

#include <weft/rpc/wire/checksum.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace weft::rpc {
namespace {

constexpr std::uint32_t magic = 0x54464557;  // "WEFT"

// The bytes of a prefix.
struct Layout {
  std::uint32_t magic;
  std::uint8_t version, kind;
  std::uint16_t flags;
  std::uint32_t header_words, checksum;
  std::uint64_t call_id, body_bytes;
};
static_assert(sizeof(Layout) == Prefix::size && std::endian::native == std::endian::little);

Layout layout_of(std::span<const std::byte, Prefix::size> bytes) {
  Layout layout;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  return layout;
}

[[noreturn]] void refuse(ErrorKind kind, const std::string& what) { throw Error(kind, "bad frame: " + what); }

[[noreturn]] void refuse_size(const char* part, std::uint64_t bytes, std::uint64_t limit,
                              const Prefix& prefix) {
  refuse(ErrorKind::resource_exhausted,
         std::string("it announces ") + part + " of " + std::to_string(bytes) + " bytes, and the limit " +
             (prefix.carries_call() ? "of this agent (AgentOptions::limits)" : "for frames of its kind") +
             " is " + std::to_string(limit));
}

}  // namespace

void encode(const Prefix& prefix, PrefixBytes out) {
  const Layout layout{magic,          Prefix::frame_version, static_cast<std::uint8_t>(prefix.kind),
                      prefix.flags,   prefix.header_words,   prefix.checksum,
                      prefix.call_id, prefix.body_bytes};
  std::memcpy(out.data(), &layout, sizeof layout);
}

Prefix decode(std::span<const std::byte, Prefix::size> in, const Limits& limits) {
  const Layout layout = layout_of(in);
  if (layout.magic != magic) refuse(ErrorKind::protocol_error, "not a weft frame");
  if (layout.version != Prefix::frame_version)
    refuse(ErrorKind::protocol_error, "frame version " + std::to_string(layout.version) + ", expected " +
                                          std::to_string(Prefix::frame_version));
  if (layout.kind < static_cast<std::uint8_t>(FrameKind::hello) ||
      layout.kind > static_cast<std::uint8_t>(FrameKind::resume))
    refuse(ErrorKind::protocol_error, "unknown kind " + std::to_string(layout.kind));
  if ((layout.flags & ~frame_flags::known) != 0)
    refuse(ErrorKind::protocol_error, "unknown flags " + std::to_string(layout.flags & ~frame_flags::known));
  const Prefix prefix{static_cast<FrameKind>(layout.kind),
                      layout.flags,
                      layout.header_words,
                      layout.checksum,
                      layout.call_id,
                      layout.body_bytes};
  const std::uint64_t header_limit = prefix.carries_call()
                                         ? limits.header
                                         : std::min<std::uint64_t>(limits.header, Prefix::max_control_header);
  const std::uint64_t body_limit = prefix.carries_call() ? limits.message : 0;
  if (prefix.header_words > header_limit / 8)
    refuse_size("a header", prefix.header_words * std::uint64_t{8}, header_limit, prefix);
  if (prefix.body_bytes > body_limit) refuse_size("a body", prefix.body_bytes, body_limit, prefix);
  if (prefix.header_words == 0) refuse(ErrorKind::protocol_error, "a header of 0 bytes");
  return prefix;
}

// A TLS record begins with its type, 20 to 23, and the number 3.
bool begins_like_tls(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] >= std::byte{0x14} && bytes[0] <= std::byte{0x17} &&
         bytes[1] == std::byte{3};
}

std::uint32_t frame_checksum(std::span<const std::byte, Prefix::size> prefix,
                             std::span<const std::byte> header) {
  Layout cleared = layout_of(prefix);
  cleared.checksum = 0;
  return crc32c(header, crc32c(std::as_bytes(std::span(&cleared, 1))));
}

void check_outgoing(const OutboundFrame& frame, const Limits& limits, const char* whose) {
  const auto check = [whose](std::uint64_t found, std::uint64_t limit, const char* what) {
    if (found > limit)
      throw Error(ErrorKind::resource_exhausted, std::string("a message with ") + std::to_string(found) +
                                                     what + ": " + whose + " limit is " +
                                                     std::to_string(limit));
  };
  std::uint64_t body = 0;
  for (const Buffer& attachment : frame.attachments) body += padded(attachment.size());
  check(frame.head.size() - Prefix::size, limits.header,
        " bytes of small values (send large ones as tensors or Buffers)");
  check(frame.attachments.size(), limits.attachments, " tensors or Buffers");
  check(body, limits.message, " bytes");
}

}  // namespace weft::rpc
