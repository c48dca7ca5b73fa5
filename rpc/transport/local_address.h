// Finds the address of this host that another host can reach.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>

namespace weft::rpc {

// The numeric address from which this host would connect to `host`; 127.0.0.1 for itself. Resolves names, so
// it may block; sends nothing. Throws unavailable if `host` cannot be resolved or has no route.
WEFT_EXPORT std::string local_address_towards(const std::string& host);

// True for "0.0.0.0" and "::", which stand for all addresses of this host; a peer cannot connect to them.
WEFT_EXPORT bool is_wildcard(const std::string& host);

}  // namespace weft::rpc
