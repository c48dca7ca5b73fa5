// Ping: the method `weft.ping`, which every agent serves and which does nothing. peer.call<Ping>() completes
// once the peer has answered. Thread-safety: stateless.
#pragma once

#include <weft/rpc/call/method.h>

namespace weft::rpc {
namespace detail {

inline void ping() {}

}  // namespace detail

using Ping = Function<"weft.ping", &detail::ping>;

}  // namespace weft::rpc
