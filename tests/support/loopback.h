// A loopback address of a process's own.
#pragma once

#include <unistd.h>

#include <string>

namespace weft::test {

// For a port that is let go and bound again, or that nobody is to listen at: whoever binds any free port of
// 127.0.0.1 meanwhile cannot take it. Linux has all of 127.0.0.0/8.
inline std::string own_loopback() {
  const int pid = ::getpid();
  const auto part = [pid](int shift) { return std::to_string(pid >> shift & 255); };
  return "127." + std::to_string(1 + (pid >> 16)) + "." + part(8) + "." + part(0);
}

}  // namespace weft::test
