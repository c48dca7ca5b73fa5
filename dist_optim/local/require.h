// require: refuses numbers that cannot be meant. Thread-safety: a function.
#pragma once

#include <weft/rpc/core/error.h>

namespace weft::dist_optim {

// `invalid_argument` with this text unless it holds.
inline void require(bool holds, const char* otherwise) {
  if (!holds) throw rpc::Error(rpc::ErrorKind::invalid_argument, otherwise);
}

}  // namespace weft::dist_optim
