// with_payload, payload: a value that accompanies an error from the handler that throws the error to the
// caller.
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
// If the error passes through nested calls, the payload stays with it, as long as each handler rethrows the
// error. The payload is packed (packed.h), so it must not contain types that depend on their call (RRefs,
// streams): their codecs throw. Thread-safety: stateless.
#pragma once

#include <weft/rpc/codec/packed.h>

namespace weft::rpc {

namespace detail {

// The type name of a payload. A struct is identified by its name alone, because fields may be added and
// removed. Other types are identified by their canonical text.
WEFT_EXPORT std::string payload_type(const std::string& canonical);
WEFT_EXPORT std::shared_ptr<const ErrorPayload> make_payload(const Error& error, std::string type,
                                                             const Buffer& packed);
// Returns the packed value if it has this type and passes the checks of a received message; otherwise null.
WEFT_EXPORT std::unique_ptr<IncomingMessage> open_payload(const Error& error, const std::string& type);

}  // namespace detail

// Returns the error with this value. An earlier payload is replaced. Throws resource_exhausted if the value
// packs to more than max_error_payload bytes.
template <Transferable T>
Error with_payload(Error error, const T& value) {
  error.set_payload(detail::make_payload(error, detail::payload_type(type_text<T>()), pack(value)));
  return error;
}

// Returns the value that accompanies the error. nullopt if the error has no payload, a payload of another
// type, or malformed bytes.
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
