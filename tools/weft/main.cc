// weft: inspects and calls any agent from a shell, and starts jobs. docs/weft_tool.md, docs/launching.md
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tools/weft/command.h"

using namespace weft::tool;

int main(int argc, char** argv) {
  CLI::App program("Inspects and calls agents of weft, without their headers.", "weft");
  program.require_subcommand(1);
  program.set_version_flag("--version", WEFT_VERSION);
  program.footer(
      "Exit status: 0 success; 1 the agent replied with an error or does not serve, or the command has a\n"
      "finding, such as a deadlock; 2 malformed command or argument, nothing was called; 3 no reply: the\n"
      "agent is unreachable or lost, has refused the connection, or the timeout has passed. The exit\n"
      "status of launch is that of the first worker that failed.");
  const Command commands[] = {add_list(program),      add_call(program),   add_ping(program),
                              add_health(program),    add_top(program),    add_hang(program),
                              add_trace(program),     add_rrefs(program),  add_dash(program),
                              add_flight(program),    add_launch(program), add_schedule(program),
                              add_partition(program), add_plan(program),   add_weights(program)};
  std::vector<std::string> words(argv + 1, argv + argc);
  for (const Command& command : commands)
    if (command.rest != nullptr && !words.empty() && words.front() == command.app->get_name()) {
      const auto mark = std::find(words.begin(), words.end(), "--");
      command.rest->assign(mark, words.end());
      words.erase(mark, words.end());
    }
  std::reverse(words.begin(), words.end());  // CLI11 expects the words in reverse order
  try {
    program.parse(words);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : static_cast<int>(Exit::usage);
  }
  Told told{Exit::usage, ""};
  try {
    for (const Command& command : commands)
      if (command.app->parsed()) told = {command.run(), ""};
  } catch (...) {
    told = tell(std::current_exception());
  }
  if (std::fflush(stdout) != 0 && told.exit == Exit::ok)
    told = {Exit::failed, "the output cannot be written"};
  if (!told.text.empty()) std::fprintf(stderr, "weft: %s\n", told.text.c_str());
  // After a timeout, destructors might wait longer for calls that are still in flight.
  if (told.exit == Exit::no_answer) std::_Exit(static_cast<int>(told.exit));
  return static_cast<int>(told.exit);
}
