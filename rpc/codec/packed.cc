#include <weft/rpc/codec/packed.h>

#include <cstring>

namespace weft::rpc::detail {

Buffer packed(const OutboundFrame& frame) {
  std::size_t size = padded(frame.head.size());
  for (const Buffer& attachment : frame.attachments) size += padded(attachment.size());
  Buffer bytes = Buffer::allocate(size);
  std::size_t at = 0;
  const auto append = [&](const Buffer& part) {
    if (!part.empty()) std::memcpy(bytes.data() + at, part.data(), part.size());
    std::memset(bytes.data() + at + part.size(), 0, padded(part.size()) - part.size());
    at += padded(part.size());
  };
  append(frame.head);
  for (const Buffer& attachment : frame.attachments) append(attachment);
  return bytes;
}

std::unique_ptr<IncomingMessage> unpacked(const Buffer& bytes) {
  const Limits limits;
  const auto refuse = [&bytes] {
    throw Error(ErrorKind::protocol_error,
                "unpack: " + std::to_string(bytes.size()) + " bytes are not a packed value");
  };
  if (bytes.size() < Prefix::size) refuse();
  const auto start = bytes.bytes().first<Prefix::size>();
  InboundFrame frame;
  frame.prefix = decode(start, limits);
  const std::size_t header = std::size_t{frame.prefix.header_words} * 8;
  if (frame.prefix.kind != FrameKind::reply || header > bytes.size() - Prefix::size) refuse();
  // The header is copied: the copy is aligned, and no other owner of the bytes can change it between check
  // and use.
  frame.header = Buffer::copy(bytes.bytes().subspan(Prefix::size, header));
  const auto sizes = check_header(frame.prefix, start, frame.header.bytes(), limits);
  std::size_t at = padded(Prefix::size + header);
  for (const std::uint64_t size : sizes) {
    if (at > bytes.size() || size > bytes.size() - at) refuse();
    frame.attachments.emplace_back(bytes.owner(), bytes.data() + at, size);
    at += padded(size);
  }
  return std::make_unique<IncomingMessage>(std::move(frame), limits);
}

}  // namespace weft::rpc::detail
