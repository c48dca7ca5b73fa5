// Finds the address of this host that another host can reach.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>

namespace weft::rpc {

// The numeric address from which this host would connect to `host`; 127.0.0.1 if `host` is this host. The
// function resolves names, so it may block; it sends nothing. Throws unavailable if `host` cannot be resolved
// or has no route.
WEFT_EXPORT std::string local_address_towards(const std::string& host);

// Whether `host` is "0.0.0.0" or "::", which represent all addresses of this host. A peer cannot connect to
// them.
WEFT_EXPORT bool is_wildcard(const std::string& host);

}  // namespace weft::rpc
