// Which of this host's addresses another host sees.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>

namespace weft::rpc {

// The address from which this host would speak to `host`, as numbers: 127.0.0.1 towards itself. Resolves
// names, so it may block; sends nothing. Throws unavailable where `host` cannot be resolved or no route leads
// there.
WEFT_EXPORT std::string local_address_towards(const std::string& host);

// "0.0.0.0" and "::": every address of this host, and so none that a peer could use.
WEFT_EXPORT bool is_wildcard(const std::string& host);

}  // namespace weft::rpc
