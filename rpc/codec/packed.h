// pack, unpack: a value as bytes, for agents that hand it on without knowing its type.
//
// The bytes are a reply's frame (docs/wire_protocol.md): self-describing, and checked as one that arrives.
// They hold a copy; what unpack() returns may share the memory of what it was given. Types that take part in
// the call that carries them (RRefs, streams) are refused by their codecs. Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/codec.h>
#include <weft/rpc/wire/message.h>

#include <memory>

namespace weft::rpc {

namespace detail {

WEFT_EXPORT Buffer packed(const OutboundFrame& frame);
WEFT_EXPORT std::unique_ptr<IncomingMessage> unpacked(const Buffer& bytes);  // throws protocol_error

}  // namespace detail

// The value as bytes. Errors: those of the codec.
template <Transferable T>
Buffer pack(const T& value) {
  const auto message = OutgoingMessage::reply();
  Codec<T>::encode(message->result(), value);
  return detail::packed(message->seal_reply(0));
}

// Throws type_mismatch, protocol_error where the bytes are no packed value.
template <Transferable T>
T unpack(const Buffer& bytes) {
  const auto message = detail::unpacked(bytes);
  return Codec<T>::decode(message->result());
}

}  // namespace weft::rpc
