#include "bench/elastic/reports.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace weft::bench {
namespace {

void expect_running(Process& launcher) {
  constexpr auto tear_down = std::chrono::seconds{5};
  if (first_ready({&launcher.channel()}, std::chrono::milliseconds{0}))
    throw std::runtime_error("the launcher has ended: " + launcher.end(tear_down));
}

}  // namespace

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
  constexpr auto limit = std::chrono::seconds{180};
  for (const auto until = Clock::now() + limit; Clock::now() < until;) {
    read(std::chrono::milliseconds{200});
    for (const auto& [generation, ranks] : first_) {
      if (!wanted(generation) || ranks.size() != static_cast<std::size_t>(generation.second)) continue;
      Start start{.generation = generation, .last_before = {}, .completed = {}, .steps_lost = 0};
      std::int64_t step = std::numeric_limits<std::int64_t>::max();  // the first one of this generation
      for (const auto& [rank, first] : ranks) {
        start.completed = std::max(start.completed, first.completed);
        step = std::min(step, first.step);
      }
      for (const auto& [other, last] : last_)
        if (other != generation && last.completed < start.completed) {
          start.last_before = std::max(start.last_before, last.completed);
          start.steps_lost = std::max(start.steps_lost, last.step - step + 1);
        }
      return start;
    }
    expect_running(launcher);
  }
  throw std::runtime_error("no step of all ranks within " + std::to_string(limit.count()) + " s");
}

void Reports::read_for(Process& launcher, std::chrono::nanoseconds time) {
  for (const auto until = Clock::now() + time; Clock::now() < until;) read(std::chrono::milliseconds{10});
  expect_running(launcher);
}

pid_t Reports::process(std::size_t rank) const {
  const auto& ranks = first_.at(latest_);
  return std::next(ranks.begin(), static_cast<long>(rank % ranks.size()))->second.process;
}

// The number of a process that has ended may belong to another process. All workers have the pipe as an
// argument.
void Reports::signal(std::size_t rank, int signal) const {
  const pid_t process = this->process(rank);
  std::ifstream file("/proc/" + std::to_string(process) + "/cmdline");
  const std::string command{std::istreambuf_iterator<char>(file), {}};
  if (command.find(path_) != std::string::npos) kill(process, signal);
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
  std::int64_t step = 0, nanoseconds = 0;
  if (!(words >> generation.first >> rank >> generation.second >> process >> step >> nanoseconds))
    throw std::runtime_error("malformed report of a step: " + line);
  const Clock::time_point completed{std::chrono::nanoseconds(nanoseconds)};
  first_[generation].try_emplace(rank, First{process, step, completed});
  last_[generation] = {step, completed};
  latest_ = generation;
  steps_ = std::max(steps_, step);
}

}  // namespace weft::bench
