// A parameter of the fixtures of RRefs, passes, optimizers and groups: with WEFT_TEST_HOSTS=1 in the
// environment, their agents behave as on different hosts. They share no memory, connect over TCP, and dial
// each other at the same time, so two agents may have two connections. Without it, they connect in memory.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/testing/cluster.h>
#include <weft/rpc/transport/in_process.h>

#include <memory>
#include <string>
#include <vector>

namespace weft::test {

// Where the agent with these options listens. network: in memory.
inline void place(rpc::AgentOptions& options, const std::shared_ptr<rpc::InProcess>& network) {
  options.listen = {between_hosts() ? "tcp://127.0.0.1:0" : "inproc://" + options.name};
  options.in_process = network;
  options.same_host = !between_hosts();
}

// Connects all agents to each other, and to themselves, by their names.
inline void acquaint(const std::vector<std::unique_ptr<rpc::Agent>>& agents) {
  std::vector<rpc::Future<rpc::AgentId>> ready;
  for (const auto& a : agents)
    for (const auto& b : agents) {
      a->core()->routes().to_name(b->name(), b->addresses());
      ready.push_back(a->peer(b->name()).ready());
    }
  for (auto& one : ready) got(std::move(one));
}

}  // namespace weft::test
