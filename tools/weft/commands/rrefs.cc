#include <weft/rref/listing.h>

#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/rrefs_text.h"

namespace weft::tool {
namespace rrefs_command {
namespace {

struct Options : AskedAgent {
  std::uint64_t most = 50;
};

Exit run(Options& options) {
  Client& client = options.connect();
  const auto listing = rref::list(client.peer(), options.most == 0 ? rref::all_objects : options.most).get();
  std::fputs(rrefs_text(listing).c_str(), stdout);
  return Exit::ok;
}

}  // namespace
}  // namespace rrefs_command

Command add_rrefs(CLI::App& program) {
  using namespace rrefs_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "rrefs",
      "The objects that live on an agent behind RRefs, the oldest first, and the agents that hold them");
  options->add_to(*app);
  app->add_option("--max", options->most, "Number of objects; 0: all")->type_name("N")->capture_default_str();
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
