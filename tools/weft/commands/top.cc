#include <algorithm>
#include <cstdio>
#include <limits>
#include <thread>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/top_text.h"

namespace weft::tool {
namespace top_command {
namespace {

struct Options : AskedAgent {
  std::string interval = "1s";
  std::uint64_t count = 0;
  bool once = false;
};

constexpr const char* clear_screen = "\x1b[H\x1b[2J\x1b[3J";

Exit run(Options& options) {
  const auto interval =
      std::max<std::chrono::nanoseconds>(parse_duration(options.interval), std::chrono::milliseconds{10});
  const std::uint64_t count = options.once ? 1 : options.count;
  const bool live = stdout_is_terminal() && !options.once;
  Client& client = options.connect();
  rpc::AgentStats before = rpc::stats(client.peer()).get();
  for (std::uint64_t shown = 0; count == 0 || shown < count;) {
    std::this_thread::sleep_for(interval);
    client.restart();
    rpc::AgentStats now = rpc::stats(client.peer()).get();
    if (now.incarnation == before.incarnation && now.uptime > before.uptime) {
      const std::string text = live ? top_text(before, now, terminal_width(), terminal_height())
                                    : top_text(before, now, std::numeric_limits<std::size_t>::max(), 0);
      std::printf("%s%s%s", live ? clear_screen : "", text.c_str(), live || count == 1 ? "" : "\n");
      if (std::fflush(stdout) != 0) return Exit::failed;  // the reader of the output has ended
      ++shown;
    }
    before = std::move(now);
  }
  return Exit::ok;
}

}  // namespace
}  // namespace top_command

Command add_top(CLI::App& program) {
  using namespace top_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("top", "The rates of an agent, repeatedly: calls, bytes, methods");
  options->add_to(*app);
  app->add_option("-i,--interval", options->interval, "Interval between two updates")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_option("-c,--count", options->count, "Number of updates; 0: until interrupted")
      ->type_name("N")
      ->capture_default_str();
  app->add_flag("--once", options->once, "Print the rates of one interval, as plain lines");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
