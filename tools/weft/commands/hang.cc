#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/flight_report.h"
#include "tools/weft/json_text.h"
#include "tools/weft/wait_graph.h"

namespace weft::tool {
namespace hang_command {
namespace {

struct Options : AskedAgent {
  std::vector<std::string> others;
  std::string older = "1s";
  bool json = false;
};

Exit run(Options& options) {
  const std::chrono::duration<double> older = parse_duration(options.older);
  Client& client = options.connect();
  // Agents are queried concurrently, so that fewer calls change in the meantime.
  std::vector<rpc::Peer> peers{client.peer()};
  for (const std::string& address : options.others) peers.push_back(client.peer_at(address));
  std::vector<rpc::Future<rpc::CallsInFlight>> asked;
  for (const rpc::Peer& peer : peers) asked.push_back(rpc::calls_in_flight(peer));
  std::vector<rpc::CallsInFlight> agents;
  std::vector<rpc::Peer> answering;
  std::exception_ptr silent;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    try {
      agents.push_back(asked[i].get());
      answering.push_back(peers[i]);
    } catch (const rpc::Error& error) {
      // The agent that does not answer may be the one for which the others wait.
      std::fprintf(stderr, "weft: %s\n", printable(error.what()).c_str());
      silent = std::current_exception();
    }
  }
  if (agents.empty()) std::rethrow_exception(silent);
  // Asked later, so that these calls are not in the answers.
  std::vector<rpc::Future<rpc::DynamicReply>> asked_groups;
  for (const rpc::Peer& peer : answering) asked_groups.push_back(ask_flight(peer, 0));
  std::vector<collectives::FlightDump> dumps;
  for (auto& answer : asked_groups) {
    auto of_agent = rpc::capture([&] { return dumps_of(answer.get()); });  // an agent may have no groups
    if (of_agent.ok()) dumps.insert(dumps.end(), of_agent.value().begin(), of_agent.value().end());
  }
  const WaitGraph graph = wait_graph(agents, older.count());
  const std::vector<OpenOperation> operations = open_operations(dumps, older.count());
  if (options.json) {
    PrintedJson json = json_of(graph);
    add_field(json, "collectives", json_of(operations));
    std::puts(on_one_line(json).c_str());
  } else if (!graph.calls.empty() || !operations.empty()) {
    std::fputs(text_of(graph).c_str(), stdout);
    std::fputs(printable(text_of(operations)).c_str(), stdout);
  } else {
    std::printf("no call has been in flight for %s\n", text_of(parse_duration(options.older)).c_str());
  }
  if (silent != nullptr) return tell(silent).exit;
  return graph.cycles.empty() ? Exit::ok : Exit::failed;
}

}  // namespace
}  // namespace hang_command

Command add_hang(CLI::App& program) {
  using namespace hang_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("hang",
                                         "Shows the calls and collectives in flight on agents, what each "
                                         "waits for, and cycles; exit status 1: a cycle");
  options->add_to(*app);
  app->add_option("OTHERS", options->others, "Further addresses: all agents that take part in the calls");
  app->add_option("--older", options->older, "Leave out calls that have been in flight for a shorter time")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one line of JSON");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
