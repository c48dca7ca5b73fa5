#include <weft/rpc/agent/agent.h>

#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace health_command {
namespace {

struct Options : AskedAgent {
  bool json = false;
};

void print(const rpc::Health& health) {
  std::printf("%s\n", printable(health.status).c_str());
  std::printf("  agent    %s (incarnation %016llx)\n", printable(health.name).c_str(),
              static_cast<unsigned long long>(health.incarnation));
  std::printf("  weft     %s\n", printable(health.version).c_str());
  std::printf("  uptime   %s\n", text_of_seconds(health.uptime).c_str());
  std::printf("  calls    %lld served now, %lld made and in flight\n",
              static_cast<long long>(health.calls_served), static_cast<long long>(health.calls_made));
}

Exit run(Options& options) {
  Client& client = options.connect();
  rpc::Health health;
  try {
    health = rpc::health(client.peer()).get();
  } catch (const rpc::Error& error) {
    // An agent that drains refuses further calls with shut_down.
    if (error.kind() != rpc::ErrorKind::shut_down) throw;
    health.status = rpc::health_draining;
    std::puts(options.json ? R"({"status": "draining"})" : "draining");
    return Exit::failed;
  }
  if (options.json) {
    std::puts(on_one_line(json_of_fields(health)).c_str());
  } else {
    print(health);
  }
  return health.status == rpc::health_serving ? Exit::ok : Exit::failed;
}

}  // namespace
}  // namespace health_command

Command add_health(CLI::App& program) {
  using namespace health_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("health", "Whether an agent serves; exit status 0: it serves");
  options->add_to(*app);
  app->add_flag("--json", options->json, "Print a JSON object");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
