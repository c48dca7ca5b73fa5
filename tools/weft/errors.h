// How a command ends: exit statuses, and the texts of errors. Thread-safety: none needed.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace weft::tool {

enum class Exit : int {
  ok = 0,
  failed = 1,    // the agent answered with an error, or is not serving
  usage = 2,     // nothing was called: the command, an argument or the method's name is wrong
  no_answer = 3  // unreachable, refused in the handshake, lost, shutting down, or not in time
};

// What the user has to change.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Told {
  Exit exit = Exit::failed;
  std::string text;  // what to print: one line or several
};
Told tell(const std::exception_ptr& error);

}  // namespace weft::tool
