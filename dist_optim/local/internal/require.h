// require: refuses invalid numbers. Thread-safety: a function.
#pragma once

#include <weft/rpc/core/error.h>

#include <c10/util/StringUtil.h>

namespace weft::dist_optim {

// Throws `invalid_argument` unless the condition holds. otherwise: the parts of the error text.
template <class... Parts>
void require(bool holds, const Parts&... otherwise) {
  if (!holds) throw rpc::Error(rpc::ErrorKind::invalid_argument, c10::str(otherwise...));
}

}  // namespace weft::dist_optim
