#include "bench/elastic/reports.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace weft::bench {

Reports::Reports() : path_(scratch_path(".reports")) {
  unlink(path_.c_str());
  // The pipe is also open for writing, so that a read does not return the end of file before a worker has
  // opened it.
  pipe_ = mkfifo(path_.c_str(), 0600) == 0 ? open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
  if (pipe_ < 0) throw std::system_error(errno, std::generic_category(), path_);
}

Reports::~Reports() {
  close(pipe_);
  unlink(path_.c_str());
}

Reports::Start Reports::wait(Process& launcher, const std::function<bool(const Generation&)>& wanted) {
  constexpr auto limit = std::chrono::seconds{120};
  constexpr auto tear_down = std::chrono::seconds{5};
  for (const auto until = Clock::now() + limit; Clock::now() < until;) {
    read(std::chrono::milliseconds{200});
    for (const auto& [generation, ranks] : first_) {
      if (!wanted(generation) || ranks.size() != static_cast<std::size_t>(generation.second)) continue;
      Start start{.generation = generation, .last_before = {}, .completed = {}, .processes = {}};
      for (const auto& [rank, first] : ranks) {
        start.completed = std::max(start.completed, first.completed);
        start.processes[rank] = first.process;
      }
      for (const auto& [other, last] : last_)
        if (other != generation && last < start.completed)
          start.last_before = std::max(start.last_before, last);
      return start;
    }
    if (first_ready({&launcher.channel()}, std::chrono::milliseconds{0}))
      throw std::runtime_error("the launcher has ended: " + launcher.end(tear_down));
  }
  throw std::runtime_error("no step of all ranks within " + std::to_string(limit.count()) + " s");
}

void Reports::read_for(std::chrono::nanoseconds time) {
  for (const auto until = Clock::now() + time; Clock::now() < until;) read(std::chrono::milliseconds{10});
}

void Reports::read(std::chrono::milliseconds timeout) {
  pollfd ready{.fd = pipe_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return;
  std::array<char, 64 * 1024> buffer;
  const ssize_t n = ::read(pipe_, buffer.data(), buffer.size());
  if (n <= 0) return;
  rest_.append(buffer.data(), static_cast<std::size_t>(n));
  for (std::size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1))
    take(rest_.substr(0, end));
}

void Reports::take(const std::string& line) {
  std::istringstream words(line);
  Generation generation;
  int rank = 0;
  pid_t process = 0;
  std::int64_t nanoseconds = 0;
  if (!(words >> generation.first >> rank >> generation.second >> process >> nanoseconds))
    throw std::runtime_error("malformed report of a step: " + line);
  const Clock::time_point completed{std::chrono::nanoseconds(nanoseconds)};
  first_[generation].try_emplace(rank, First{process, completed});
  last_[generation] = completed;
}

}  // namespace weft::bench
