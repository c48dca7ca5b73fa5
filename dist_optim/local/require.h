// require: refuses invalid numbers. Thread-safety: a function.
#pragma once

#include <weft/rpc/core/error.h>

#include <string>

namespace weft::dist_optim {

// Throws `invalid_argument` with the text `otherwise` unless the condition holds.
inline void require(bool holds, const std::string& otherwise) {
  if (!holds) throw rpc::Error(rpc::ErrorKind::invalid_argument, otherwise);
}

}  // namespace weft::dist_optim
