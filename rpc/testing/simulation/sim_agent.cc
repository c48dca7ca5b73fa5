#include <weft/rpc/testing/simulation/sim_agent.h>

#include <weft/rpc/testing/simulation/sim_transport.h>

namespace weft::test {

rpc::Runtime sim_runtime(SimProcess& process, std::size_t loops) {
  rpc::Runtime runtime;
  for (std::size_t i = 0; i < loops; ++i) runtime.loops.push_back(process.make_loop());
  runtime.handlers = process.make_executor();
  runtime.incarnation = process.world().order().next() | 1;
  runtime.process.network = 1;  // of all processes, so that a refusal proves the end of a process
  runtime.transports = {std::make_shared<SimTransport>(process)};
  return runtime;
}

rpc::Agent& start_agent(SimProcess& process, rpc::AgentOptions options, rpc::Layers layers) {
  const std::size_t loops = std::max<std::size_t>(options.loops, 1);
  return start_agent(process, sim_runtime(process, loops), std::move(options), std::move(layers));
}

rpc::Agent& start_agent(SimProcess& process, rpc::Runtime runtime, rpc::AgentOptions options,
                        rpc::Layers layers) {
  if (options.name.empty()) options.name = process.name();
  if (options.listen.empty()) options.listen = {"sim://" + options.name};
  if (!options.log)
    options.log = [&world = process.world()](const rpc::LogRecord& record) {
      world.trace().note(world.now(), std::string(record.agent) + ": " + std::string(record.message));
    };
  return process.keep(
      std::make_shared<rpc::Agent>(std::move(runtime), std::move(options), std::move(layers)));
}

}  // namespace weft::test
