// Connections that are lost while their agents live, as by a reset in the network.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/link.h>

namespace weft::test {

// Closes the agent's connections to other agents, without a goodbye. Its connection to itself stays, because
// that one has no session.
inline void lose_connections(rpc::Agent& agent) {
  for (const auto& link : agent.core()->links().all())
    link->loop()->post([link, self = agent.id()] {
      if (link->ready() && link->peer() != self)
        link->close(rpc::Error(rpc::ErrorKind::peer_lost, "the test lost it"));
    });
}

}  // namespace weft::test
