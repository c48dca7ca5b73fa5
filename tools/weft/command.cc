#include "tools/weft/command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/weft/duration.h"

namespace weft::tool {

void AgentOptions::add_to(CLI::App& command) {
  command.add_option("ADDRESS", address, "host:port, tcp://host:port, unix:///path or /path")->required();
  command.add_option("--timeout", timeout, "How long to wait for the answer: 5s, 300ms, 2m; 0: for ever")
      ->type_name("TIME")
      ->capture_default_str();
  command.add_flag("-v,--verbose", verbose, "Tell what happens to the connection");
}

std::chrono::nanoseconds AgentOptions::time() const { return parse_duration(timeout); }

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) != 0; }

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

}  // namespace weft::tool
