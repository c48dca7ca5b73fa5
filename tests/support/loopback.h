// A loopback address that only this process uses.
#pragma once

#include <unistd.h>

#include <string>

namespace weft::test {

// An address for a port that the test releases and binds again, or on which no process may listen. In the
// meantime, a process that binds any free port of 127.0.0.1 cannot get this port. Linux serves all of
// 127.0.0.0/8.
inline std::string own_loopback() {
  const int pid = ::getpid();
  const auto part = [pid](int shift) { return std::to_string(pid >> shift & 255); };
  return "127." + std::to_string(1 + (pid >> 16)) + "." + part(8) + "." + part(0);
}

}  // namespace weft::test
