// Companions: the shared-memory address that stands beside a TCP or Unix address, unasked for.
//
// An agent that listens there also listens at the companion; one that is about to dial the address from the
// same host, network namespace and user looks for the companion first. Its name is made of what both know:
// the namespace with host and port, or the Unix socket's file; so nothing is negotiated and nothing changes
// over while calls are under way. Where there is none, or it cannot be used, the address itself is dialled.
// Companions lie in a folder of the user's alone. Thread-safety: functions.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/address.h>

#include <optional>
#include <vector>

namespace weft::rpc {

// Where an agent that listens at `address` (as bound, with its port) also listens. Makes the folder. Nothing
// where there is no place for it, or for other schemes.
WEFT_EXPORT std::optional<Address> companion_of(const Address& address);

// The companions that exist of an address which is about to be dialled, the likeliest first. Resolves no
// names but localhost, so that it never waits.
WEFT_EXPORT std::vector<Address> companions_towards(const Address& address);

}  // namespace weft::rpc
