// Companions: the shared-memory address that an agent opens automatically next to a TCP or Unix address.
//
// An agent that listens on such an address also listens on its companion. An agent that connects to the
// address from the same host, network namespace and user tries the companion first. Both sides derive the
// companion's name from the namespace, host and port, or from the Unix socket's file. So nothing is
// negotiated, and no connection changes while calls are in flight. If the companion does not exist or cannot
// be used, the agent connects to the address itself. Companions are files in a directory that only the user
// can access. Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/address.h>

#include <optional>
#include <vector>

namespace weft::rpc {

// The companion of `address`, which is a bound address with its port. Creates the directory, and removes the
// sockets of killed processes from it. nullopt if no directory is safe, or if the address has another scheme.
WEFT_EXPORT std::optional<Address> companion_of(const Address& address);

// The existing companions of an address to connect to, the most likely one first. Resolves only the name
// localhost, so that it never blocks.
WEFT_EXPORT std::vector<Address> companions_towards(const Address& address);

}  // namespace weft::rpc
