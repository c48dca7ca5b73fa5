#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
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
  std::vector<rpc::Future<rpc::CallsInFlight>> asked;
  asked.push_back(rpc::calls_in_flight(client.peer()));
  for (const std::string& address : options.others)
    asked.push_back(rpc::calls_in_flight(client.peer_at(address)));
  std::vector<rpc::CallsInFlight> agents;
  std::exception_ptr silent;
  for (auto& answer : asked) {
    try {
      agents.push_back(answer.get());
    } catch (const rpc::Error& error) {
      // The agent that does not answer may be the one for which the others wait.
      std::fprintf(stderr, "weft: %s\n", printable(error.what()).c_str());
      silent = std::current_exception();
    }
  }
  if (agents.empty()) std::rethrow_exception(silent);
  const WaitGraph graph = wait_graph(agents, older.count());
  if (options.json) {
    std::puts(on_one_line(json_of(graph)).c_str());
  } else if (!graph.calls.empty()) {
    std::fputs(text_of(graph).c_str(), stdout);
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
                                         "Shows the calls in flight on agents, the calls for which each "
                                         "waits, and cycles; exit status 1: a cycle");
  options->add_to(*app);
  app->add_option("OTHERS", options->others, "Further addresses: all agents that take part in the calls");
  app->add_option("--older", options->older, "Leave out calls that have been in flight for a shorter time")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print one line of JSON");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
