// The errors of schedules: all of them say that an argument is wrong.
#pragma once

#include <weft/rpc/core/error.h>

#include <string>

namespace weft::schedule {

[[noreturn]] inline void refuse(const std::string& operation, const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, operation + ": " + why);
}

}  // namespace weft::schedule
