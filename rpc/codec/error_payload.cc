#include <weft/rpc/codec/error_payload.h>

namespace weft::rpc::detail {

std::string payload_type(const std::string& canonical) {
  const bool is_struct = canonical.ends_with('}') && canonical.find_first_of("[{(<") != 0;
  return is_struct ? canonical.substr(0, canonical.find('{')) : canonical;
}

std::shared_ptr<const ErrorPayload> make_payload(const Error& error, std::string type, const Buffer& packed) {
  if (packed.size() + type.size() > max_error_payload)
    throw Error(
        ErrorKind::resource_exhausted,
        "with_payload: a '" + type + "' packs to " + std::to_string(packed.size()) +
            " bytes, more than the " + std::to_string(max_error_payload) +
            " that an error can carry: throw the error with a smaller value; the error was: " + error.what());
  const auto bytes = packed.bytes();
  return std::make_shared<const ErrorPayload>(
      ErrorPayload{std::move(type), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
}

std::unique_ptr<IncomingMessage> open_payload(const Error& error, const std::string& type) {
  const auto& payload = error.payload();
  if (payload == nullptr || payload->type != type) return nullptr;
  try {
    return unpacked(Buffer::copy(std::as_bytes(std::span(payload->bytes))));
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace weft::rpc::detail
