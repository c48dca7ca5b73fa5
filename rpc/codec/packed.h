// pack, unpack: convert a value to bytes and back, for agents that pass on a value without its C++ type.
//
// The bytes are the frame of a reply (docs/internals/wire_protocol.md): self-describing, and checked like a
// received frame. They contain a copy of the value; the result of unpack() may share the memory of its
// argument. Types that depend on their call (RRefs, streams) cannot be packed: their codecs throw.
// Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/codec.h>
#include <weft/rpc/wire/message.h>

#include <memory>

namespace weft::rpc {

namespace detail {

WEFT_EXPORT Buffer packed(const OutboundFrame& frame);
WEFT_EXPORT std::unique_ptr<IncomingMessage> unpacked(const Buffer& bytes);  // throws protocol_error

}  // namespace detail

// Returns the value as bytes. Throws the errors of the codec.
template <Transferable T>
Buffer pack(const T& value) {
  const auto message = OutgoingMessage::reply();
  Codec<T>::encode(message->result(), value);
  return detail::packed(message->seal_reply(0));
}

// Returns the value. Throws type_mismatch if the value has another type, protocol_error if the bytes are not
// a packed value.
template <Transferable T>
T unpack(const Buffer& bytes) {
  const auto message = detail::unpacked(bytes);
  return Codec<T>::decode(message->result());
}

}  // namespace weft::rpc
