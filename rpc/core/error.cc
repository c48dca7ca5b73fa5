#include <weft/rpc/core/error.h>

namespace weft::rpc {
namespace {

std::string describe(const std::string& message, const std::string& worker, const std::string& method,
                     const std::string& type) {
  std::string text = worker + ": " + method + ": ";
  if (!type.empty()) text += type + ": ";
  return text + message;
}

// The names of the kinds; `internal` is the name of all other numbers.
constexpr std::pair<ErrorKind, std::string_view> kind_names[] = {
    {ErrorKind::invalid_argument, "invalid_argument"},
    {ErrorKind::type_mismatch, "type_mismatch"},
    {ErrorKind::not_found, "not_found"},
    {ErrorKind::already_exists, "already_exists"},
    {ErrorKind::permission_denied, "permission_denied"},
    {ErrorKind::unsupported, "unsupported"},
    {ErrorKind::failed_precondition, "failed_precondition"},
    {ErrorKind::argument_modified, "argument_modified"},
    {ErrorKind::handler_failed, "handler_failed"},
    {ErrorKind::deadline_exceeded, "deadline_exceeded"},
    {ErrorKind::cancelled, "cancelled"},
    {ErrorKind::aborted, "aborted"},
    {ErrorKind::unavailable, "unavailable"},
    {ErrorKind::peer_lost, "peer_lost"},
    {ErrorKind::owner_lost, "owner_lost"},
    {ErrorKind::lease_lost, "lease_lost"},
    {ErrorKind::shut_down, "shut_down"},
    {ErrorKind::resource_exhausted, "resource_exhausted"},
    {ErrorKind::protocol_error, "protocol_error"},
};

}  // namespace

std::string_view to_string(ErrorKind kind) {
  for (const auto& [known, name] : kind_names)
    if (known == kind) return name;
  return "internal";
}

ErrorKind error_kind(std::uint16_t number) {
  for (const auto& [known, name] : kind_names)
    if (static_cast<std::uint16_t>(known) == number) return known;
  return ErrorKind::internal;
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

Error error_of(const std::exception_ptr& error) {
  return as_error(error).value_or(Error(ErrorKind::internal, what_of(error)));
}

bool is_remote(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError&) {
    return true;
  } catch (...) {
    return false;
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
