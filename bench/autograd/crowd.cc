#include "bench/autograd/crowd.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <system_error>

namespace weft::bench {
namespace {

[[noreturn]] void run(
    std::size_t i, int out,
    const std::function<void(std::size_t, const std::function<void(const std::string&)>&)>& serve) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    serve(i, [out](const std::string& address) {
      const std::string line = address + "\n";
      if (write(out, line.data(), line.size()) < 0) std::abort();
      close(out);
    });
    for (;;) pause();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker %zu: %s\n", i, error.what());
  }
  _exit(1);
}

std::string read_line(int in) {
  std::string line;
  for (char c = 0; read(in, &c, 1) == 1;) {
    if (c == '\n') return line;
    line += c;
  }
  throw std::runtime_error("a worker ended before it served");
}

}  // namespace

std::vector<std::string> fork_crowd(
    std::size_t count,
    const std::function<void(std::size_t, const std::function<void(const std::string&)>&)>& serve) {
  std::vector<int> ends;
  for (std::size_t i = 0; i < count; ++i) {
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    const pid_t child = fork();
    if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child == 0) {
      close(pipe_ends[0]);
      run(i, pipe_ends[1], serve);
    }
    close(pipe_ends[1]);
    ends.push_back(pipe_ends[0]);
  }
  std::vector<std::string> addresses;
  for (const int end : ends) {
    addresses.push_back(read_line(end));
    close(end);
  }
  return addresses;
}

}  // namespace weft::bench
