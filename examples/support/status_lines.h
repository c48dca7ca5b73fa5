// StatusLines: a terminal whose last lines are the current status of several processes, with ordinary output
// scrolling above them. Where standard output is no terminal only the ordinary output is shown. One thread.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace examples {

// Set for a process whose parent shows its status: lines that it ends in '\r'.
inline constexpr const char* status_variable = "EXAMPLES_SHOW_STATUS";

class StatusLines {
 public:
  explicit StatusLines(std::size_t processes);

  bool is_terminal() const { return terminal_; }
  void print(FILE* to, const std::string& line);
  void set_status(std::size_t process, std::string status);  // empty: none
  void end();                                                // the last ones stay as they are

 private:
  void erase();
  void draw();

  const bool terminal_;
  std::vector<std::string> status_;
  std::size_t drawn_ = 0;  // lines on the terminal now
};

}  // namespace examples
