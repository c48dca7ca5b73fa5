// Agents in a simulated world.
//
//   SimProcess& process = world.start("anna");
//   rpc::Agent& anna = start_agent(process);             // listens at sim://anna
//   anna.serve(std::make_shared<Market>());
//   const rpc::Peer bert = anna.connect("sim://bert");
//   EXPECT_EQ(world.got(bert.call<&Market::last>("ACME")), 5);
//
// An agent is kept by its process and crashes with it; SimProcess::let_go() shuts it down. Its loops and
// handlers run in virtual time, its incarnation is drawn from the seed. Thread-safety: none.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/testing/simulation/sim_world.h>

namespace weft::test {

// What an agent runs on, for one that is made otherwise than by start_agent(): loops and an executor of the
// process, and a SimTransport.
WEFT_EXPORT rpc::Runtime sim_runtime(SimProcess& process, std::size_t loops = 1);

// The options need no name (the process's), no address (sim://NAME) and no log (the world's trace).
WEFT_EXPORT rpc::Agent& start_agent(SimProcess& process, rpc::AgentOptions options = {},
                                    rpc::Layers layers = {});
// The same on a runtime of the caller's.
WEFT_EXPORT rpc::Agent& start_agent(SimProcess& process, rpc::Runtime runtime, rpc::AgentOptions options = {},
                                    rpc::Layers layers = {});

}  // namespace weft::test
