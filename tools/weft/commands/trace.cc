#include <weft/rpc/trace/chrome_trace.h>

#include <cstdio>
#include <thread>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace trace_command {
namespace {

struct Options : AskedAgent {
  std::vector<std::string> others;
  std::string during, output;
};

rpc::AgentSpans collect(const rpc::Peer& peer, const std::string& address) {
  try {
    return rpc::collect_spans(peer);
  } catch (const rpc::RemoteError& error) {
    if (error.kind() != rpc::ErrorKind::not_found) throw;
    throw UsageError("the agent at " + address + " has no tracer: see docs/observability.md");
  }
}

std::vector<rpc::AgentSpans> collect_all(Options& options, Client& client) {
  std::vector<rpc::AgentSpans> agents{collect(client.peer(), client.address())};
  for (const std::string& address : options.others)
    agents.push_back(collect(client.peer_at(address), address));
  return agents;
}

Exit run(Options& options) {
  Client& client = options.connect();
  if (!options.during.empty()) {
    (void)collect_all(options, client);  // discards the spans that were recorded before
    std::this_thread::sleep_for(parse_duration(options.during));
    client.restart();
  }
  const auto agents = collect_all(options, client);
  const std::string json = rpc::chrome_trace(agents);
  if (options.output.empty()) {
    std::fputs(json.c_str(), stdout);
  } else {
    write_file(options.output, json);
  }
  for (const auto& agent : agents)
    std::fprintf(stderr, "%s: %zu spans, %llu dropped; its clock is known to %s\n",
                 printable(agent.agent).c_str(), agent.spans.size(),
                 static_cast<unsigned long long>(agent.dropped),
                 text_of(std::chrono::nanoseconds(agent.clock.uncertain)).c_str());
  return Exit::ok;
}

}  // namespace
}  // namespace trace_command

Command add_trace(CLI::App& program) {
  using namespace trace_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "trace", "The calls that agents with a tracer have recorded, in Chrome's format (ui.perfetto.dev)");
  options->add_to(*app);
  app->add_option("OTHERS", options->others, "Further addresses: all agents that take part in the calls");
  app->add_option("--for", options->during, "Only calls that are recorded from now on, for this time")
      ->type_name("TIME");
  app->add_option("-o,--output", options->output, "Write the trace into this file")->type_name("FILE");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
