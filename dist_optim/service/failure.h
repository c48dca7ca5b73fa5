// The kind and the text of a call's error, for an rpc::Error or another exception. Thread-safety: functions.
#pragma once

#include <weft/rpc/core/error.h>

#include <exception>
#include <string>

namespace weft::dist_optim {

// `internal` for an exception that is not an rpc::Error.
inline rpc::ErrorKind kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& found) {
    return found.kind();
  } catch (...) {
    return rpc::ErrorKind::internal;
  }
}

// The message of the exception.
inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& found) {
    return found.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace weft::dist_optim
