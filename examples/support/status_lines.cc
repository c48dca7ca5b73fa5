#include "support/status_lines.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

namespace examples {

StatusLines::StatusLines(std::size_t processes) : terminal_(isatty(STDOUT_FILENO) == 1), status_(processes) {}

void StatusLines::print(FILE* to, const std::string& line) {
  erase();
  fmt::print(to, "{}\n", line);
  std::fflush(to);
  draw();
}

void StatusLines::set_status(std::size_t process, std::string status) {
  if (!terminal_ || status == status_[process]) return;
  erase();
  status_[process] = std::move(status);
  draw();
}

void StatusLines::end() {
  drawn_ = 0;
  for (std::string& status : status_) status.clear();
}

void StatusLines::erase() {
  if (drawn_ > 0) fmt::print("\033[{}A\r\033[J", drawn_);  // up, and clear from there on
  drawn_ = 0;
}

void StatusLines::draw() {
  if (!terminal_) return;
  for (const std::string& status : status_) {
    if (status.empty()) continue;
    fmt::print("{}\n", status);
    ++drawn_;
  }
  std::fflush(stdout);
}

}  // namespace examples
