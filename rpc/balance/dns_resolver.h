// dns_resolver: a PeerSet's replicas by the name of a host that has several addresses.
//
//   rpc::PeerSet markets{agent, rpc::dns_resolver(agent, "tcp://markets.internal:7443")};
//
// The system's resolver is asked (DNS, /etc/hosts), by a thread of Asio's beside the agent's loop: no loop
// waits for it. Each address of the host is a replica, tcp://ADDRESS:port; with credentials
// tcp://HOST@ADDRESS:port, so that a replica's certificate must be for the host's name. The resolver does not
// keep the agent. Errors of a query: unavailable where the host has no address that is known, shut_down with
// the agent; the set goes on with what it knew.
#pragma once

#include <weft/rpc/balance/peer_set.h>

#include <string_view>

namespace weft::rpc {

// address: tcp://host:port; throws invalid_argument.
WEFT_EXPORT PeerSet::Resolver dns_resolver(Agent& agent, std::string_view address);

}  // namespace weft::rpc
