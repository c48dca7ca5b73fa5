// Throws the error of a schedule's function, which is always invalid_argument.
#pragma once

#include <weft/rpc/core/error.h>

#include <string>

namespace weft::schedule {

[[noreturn]] inline void refuse(const std::string& operation, const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, operation + ": " + why);
}

}  // namespace weft::schedule
