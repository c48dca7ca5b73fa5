// Agents in a simulated world.
//
//   SimProcess& process = world.start("anna");
//   rpc::Agent& anna = start_agent(process);             // listens at sim://anna
//   anna.serve(std::make_shared<Market>());
//   const rpc::Peer bert = anna.connect("sim://bert");
//   EXPECT_EQ(world.got(bert.call<&Market::last>("ACME")), 5);
//
// The process keeps the agent. If the process crashes, the agent crashes with it. SimProcess::destroy_kept()
// shuts the agent down. The agent's loops and handlers run in virtual time, and its incarnation depends on
// the seed. Thread-safety: none.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/testing/simulation/sim_world.h>

namespace weft::test {

// A runtime for agents that start_agent() does not make: loops and an executor of the process, and a
// SimTransport.
WEFT_EXPORT rpc::Runtime sim_runtime(SimProcess& process, std::size_t loops = 1);

// Starts an agent. Defaults of the options: the process's name, the address sim://NAME, and a log that writes
// to the world's trace.
WEFT_EXPORT rpc::Agent& start_agent(SimProcess& process, rpc::AgentOptions options = {},
                                    rpc::Layers layers = {});
// Starts an agent with the caller's runtime.
WEFT_EXPORT rpc::Agent& start_agent(SimProcess& process, rpc::Runtime runtime, rpc::AgentOptions options = {},
                                    rpc::Layers layers = {});

}  // namespace weft::test
