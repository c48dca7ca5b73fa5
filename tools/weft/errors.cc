#include "tools/weft/errors.h"

#include <weft/rpc/core/error.h>

#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

using rpc::ErrorKind;

Exit exit_of(ErrorKind kind, bool remote) {
  switch (kind) {
    // Also for an error that an agent returned: the reply of an agent that shuts down may arrive before or
    // after the timeout.
    case ErrorKind::deadline_exceeded:
    case ErrorKind::shut_down:
      return Exit::no_answer;
    case ErrorKind::unavailable:
    case ErrorKind::peer_lost:
    case ErrorKind::protocol_error:
    case ErrorKind::permission_denied:  // the handshake was refused
      return remote ? Exit::failed : Exit::no_answer;
    case ErrorKind::invalid_argument:
    case ErrorKind::unsupported:
    case ErrorKind::resource_exhausted:
      return remote ? Exit::failed : Exit::usage;
    default:
      return Exit::failed;
  }
}

}  // namespace

Told tell(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const UsageError& usage) {
    return {Exit::usage, usage.what()};
  } catch (const rpc::RemoteError& remote) {
    std::string text = remote.method() + " failed on " + remote.worker() + ": " +
                       std::string(rpc::to_string(remote.kind())) + ": ";
    if (!remote.type().empty()) text += remote.type() + ": ";
    return {exit_of(remote.kind(), true), printable(text + remote.detail())};
  } catch (const rpc::Error& own) {
    return {exit_of(own.kind(), false),
            printable(std::string(rpc::to_string(own.kind())) + ": " + own.what())};
  } catch (const std::exception& other) {
    return {Exit::failed, printable(other.what())};
  }
}

}  // namespace weft::tool
