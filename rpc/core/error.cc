#include <weft/rpc/core/error.h>

namespace weft::rpc {
namespace {

std::string describe(const std::string& message, const std::string& worker, const std::string& method,
                     const std::string& type) {
  std::string text = worker + ": " + method + ": ";
  if (!type.empty()) text += type + ": ";
  return text + message;
}

}  // namespace

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::type_mismatch:
      return "type_mismatch";
    case ErrorKind::not_found:
      return "not_found";
    case ErrorKind::already_exists:
      return "already_exists";
    case ErrorKind::permission_denied:
      return "permission_denied";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::failed_precondition:
      return "failed_precondition";
    case ErrorKind::argument_modified:
      return "argument_modified";
    case ErrorKind::handler_failed:
      return "handler_failed";
    case ErrorKind::deadline_exceeded:
      return "deadline_exceeded";
    case ErrorKind::cancelled:
      return "cancelled";
    case ErrorKind::aborted:
      return "aborted";
    case ErrorKind::unavailable:
      return "unavailable";
    case ErrorKind::peer_lost:
      return "peer_lost";
    case ErrorKind::owner_lost:
      return "owner_lost";
    case ErrorKind::lease_lost:
      return "lease_lost";
    case ErrorKind::shut_down:
      return "shut_down";
    case ErrorKind::resource_exhausted:
      return "resource_exhausted";
    case ErrorKind::protocol_error:
      return "protocol_error";
    case ErrorKind::internal:
      return "internal";
  }
  return "internal";
}

ErrorKind error_kind(std::uint16_t number) {
  const auto kind = static_cast<ErrorKind>(number);
  return to_string(kind) == to_string(ErrorKind::internal) ? ErrorKind::internal : kind;
}

Error::Error(ErrorKind kind, const std::string& message, Execution execution)
    : std::runtime_error(message), kind_(kind), execution_(execution) {}

Error::~Error() = default;

RemoteError::RemoteError(ErrorKind kind, const std::string& message, std::string worker, std::string method,
                         std::string type, Execution execution)
    : Error(kind, describe(message, worker, method, type), execution),
      worker_(std::move(worker)),
      method_(std::move(method)),
      type_(std::move(type)),
      detail_(message) {}

RemoteError::~RemoteError() = default;

std::optional<Error> as_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known;
  } catch (...) {
    return std::nullopt;
  }
}

ErrorKind error_kind(const std::exception_ptr& error, ErrorKind otherwise) {
  const auto known = as_error(error);
  return known ? known->kind() : otherwise;
}

std::string what_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace weft::rpc
