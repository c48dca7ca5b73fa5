// with_payload, payload: a value that accompanies an error, from the handler that throws it to its caller.
//
//   struct QuotaExceeded { std::int64_t limit = 0; };
//   WEFT_CODEC(QuotaExceeded, limit)
//
//   throw rpc::with_payload(rpc::Error(rpc::ErrorKind::resource_exhausted, "quota"), QuotaExceeded{100});
//
//   } catch (const rpc::Error& error) {
//     if (const auto quota = rpc::payload<QuotaExceeded>(error)) wait_for(quota->limit);
//   }
//
// The payload also passes through the calls between that handler and the caller, as long as their handlers
// let the error through. It is packed (packed.h): types that take part in the call that carries them (RRefs,
// streams) are refused by their codecs. Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/packed.h>
#include <weft/rpc/codec/type_text.h>

namespace weft::rpc {

namespace detail {

// Structs evolve by their fields, so a payload is known by the struct's name alone; other types by their
// canonical text.
WEFT_EXPORT std::string payload_type(const std::string& canonical);
WEFT_EXPORT std::shared_ptr<const ErrorPayload> make_payload(const Error& error, std::string type,
                                                             const Buffer& packed);
// The packed value, if it is of this type and has passed the checks of a message that arrives; else null.
WEFT_EXPORT std::unique_ptr<IncomingMessage> open_payload(const Error& error, const std::string& type);

}  // namespace detail

// The same error with this value, in place of any that it had. Throws resource_exhausted where the value
// packs to more than max_error_payload bytes.
template <Transferable T>
Error with_payload(Error error, const T& value) {
  error.set_payload(detail::make_payload(error, detail::payload_type(type_text<T>()), pack(value)));
  return error;
}

// The value that accompanies the error. None: the error has no payload, or one of another type, or its
// bytes are malformed.
template <Transferable T>
std::optional<T> payload(const Error& error) {
  const auto message = detail::open_payload(error, detail::payload_type(type_text<T>()));
  if (message == nullptr) return std::nullopt;
  try {
    return Codec<T>::decode(message->result());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace weft::rpc
