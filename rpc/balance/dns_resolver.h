// dns_resolver: the replicas of a PeerSet from a host name with several addresses.
//
//   rpc::PeerSet markets{agent, rpc::dns_resolver(agent, "tcp://markets.internal:7443")};
//
// The system's resolver (DNS, /etc/hosts) runs on a thread of Asio, so that it does not block the agent's
// loop. Each address of the host is a replica: tcp://ADDRESS:port. If the agent has credentials, the replica
// is tcp://HOST@ADDRESS:port, so that its certificate must be for the host name. The resolver does not keep
// the agent alive. A query fails with unavailable if the host has no known address, and with shut_down if the
// agent has ended. If a query fails, the set keeps its last result.
#pragma once

#include <weft/rpc/balance/peer_set.h>

#include <string_view>

namespace weft::rpc {

// address: tcp://host:port. Throws invalid_argument if it is malformed.
WEFT_EXPORT PeerSet::Resolver dns_resolver(const Agent& agent, std::string_view address);

}  // namespace weft::rpc
