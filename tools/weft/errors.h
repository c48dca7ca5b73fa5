// The exit statuses of commands, and the texts of their errors. Thread-safety: functions without state.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace weft::tool {

enum class Exit : int {
  ok = 0,
  failed = 1,  // the agent answered with an error, or is not serving
  usage = 2,   // no call was made: the command, an argument or the method's name is wrong
  // The agent was unreachable, refused the handshake, was lost, was shutting down, or did not answer in time.
  no_answer = 3
};

// An error that the user can correct: its text says what to change.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Told {
  Exit exit = Exit::failed;
  std::string text;  // the text to print, one line or several
};
Told tell(const std::exception_ptr& error);

}  // namespace weft::tool
