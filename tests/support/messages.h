// Frames without a connection: the sealed message, as bytes or as an incoming message.
#pragma once

#include <weft/rpc/codec/codec.h>
#include <weft/rpc/wire/message.h>

#include <memory>
#include <vector>

namespace weft::test {

// A frame in its wire format, with padded attachments.
inline std::vector<std::byte> bytes_of(const rpc::OutboundFrame& frame) {
  std::vector<std::byte> bytes(frame.head.bytes().begin(), frame.head.bytes().end());
  for (const rpc::Buffer& attachment : frame.attachments) {
    bytes.insert(bytes.end(), attachment.bytes().begin(), attachment.bytes().end());
    bytes.resize(bytes.size() + rpc::padded(attachment.size()) - attachment.size());
  }
  return bytes;
}

// The message that a connection delivers after its checks.
inline rpc::InboundFrame inbound(const rpc::OutboundFrame& frame, const rpc::Limits& limits = {}) {
  const auto prefix = frame.head.bytes().first<rpc::Prefix::size>();
  rpc::InboundFrame in;
  in.prefix = rpc::decode(prefix, limits);
  in.header = rpc::Buffer::copy(frame.head.bytes().subspan(rpc::Prefix::size));
  (void)rpc::check_header(in.prefix, prefix, in.header.bytes(), limits);
  for (const rpc::Buffer& attachment : frame.attachments)
    in.attachments.push_back(rpc::Buffer::copy(attachment.bytes()));
  return in;
}

// The attachments of a frame, as its message returns them. If all of them are empty, the frame carries no
// bytes after its header.
inline std::vector<rpc::Buffer> attachments_of(const rpc::InboundFrame& frame) {
  const rpc::IncomingMessage message(frame, {});
  std::vector<rpc::Buffer> all;
  for (std::uint32_t i = 0; i < message.attachment_count(); ++i) all.push_back(message.attachment(i));
  return all;
}

inline std::shared_ptr<rpc::IncomingMessage> received(const rpc::OutboundFrame& frame,
                                                      const rpc::Limits& limits = {}) {
  return std::make_shared<rpc::IncomingMessage>(inbound(frame, limits), limits);
}

// A request with one argument, written by `encode`.
template <class Encode>
std::shared_ptr<rpc::IncomingMessage> with_argument(Encode encode, const rpc::Limits& limits = {}) {
  auto message = rpc::OutgoingMessage::request(1);
  encode(message->argument(0));
  return received(message->seal_request({1, 2, 0}, 3, 0), limits);
}

// A value after it has been sent as a Sent and received as a T.
template <class T, class Sent>
T travel_as(const Sent& value) {
  return rpc::Codec<T>::decode(
      with_argument([&](rpc::ValueWriter writer) { rpc::Codec<Sent>::encode(writer, value); })->argument(0));
}
template <class T>
T travel(const T& value) {
  return travel_as<T>(value);
}

}  // namespace weft::test
