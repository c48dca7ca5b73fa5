#include <weft/rpc/wire/prefix.h>

#include <weft/rpc/core/bytes.h>
#include <weft/rpc/wire/checksum.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace weft::rpc {
namespace {

constexpr std::uint32_t magic = 0x54464557;  // "WEFT"
constexpr std::size_t flags_offset = 6;
constexpr std::size_t checksum_offset = 12;

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
  put_at(out, 0, magic);
  put_at(out, 4, Prefix::frame_version);
  put_at(out, 5, static_cast<std::uint8_t>(prefix.kind));
  put_at(out, flags_offset, prefix.flags);
  put_at(out, 8, prefix.header_words);
  put_at(out, checksum_offset, prefix.checksum);
  put_at(out, 16, prefix.call_id);
  put_at(out, 24, prefix.body_bytes);
}

Prefix decode(std::span<const std::byte, Prefix::size> in, const Limits& limits) {
  if (take_at<std::uint32_t>(in, 0) != magic) refuse(ErrorKind::protocol_error, "not a weft frame");
  if (const auto version = take_at<std::uint8_t>(in, 4); version != Prefix::frame_version)
    refuse(ErrorKind::protocol_error, "frame version " + std::to_string(version) + ", expected " +
                                          std::to_string(Prefix::frame_version));
  Prefix prefix;
  const auto kind = take_at<std::uint8_t>(in, 5);
  if (kind < static_cast<std::uint8_t>(FrameKind::hello) ||
      kind > static_cast<std::uint8_t>(FrameKind::resume))
    refuse(ErrorKind::protocol_error, "unknown kind " + std::to_string(kind));
  prefix.kind = static_cast<FrameKind>(kind);
  prefix.flags = take_at<std::uint16_t>(in, flags_offset);
  if ((prefix.flags & ~frame_flags::known) != 0)
    refuse(ErrorKind::protocol_error, "unknown flags " + std::to_string(prefix.flags & ~frame_flags::known));
  prefix.header_words = take_at<std::uint32_t>(in, 8);
  prefix.checksum = take_at<std::uint32_t>(in, checksum_offset);
  prefix.call_id = take_at<std::uint64_t>(in, 16);
  prefix.body_bytes = take_at<std::uint64_t>(in, 24);
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
  std::array<std::byte, Prefix::size> cleared;
  std::memcpy(cleared.data(), prefix.data(), Prefix::size);
  std::memset(cleared.data() + checksum_offset, 0, sizeof(std::uint32_t));
  return crc32c(header, crc32c(cleared));
}

}  // namespace weft::rpc
