#include "bench/harness/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace weft::bench {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

[[noreturn]] void run_child(const Pins& pins, std::size_t index, int output, Channel channel,
                            const std::function<void(Channel&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_DFL);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  int status = 0;
  try {
    pins.apply(index);
    body(channel);
  } catch (const std::exception& error) {
    // LibTorch's messages have a stack trace after the first line. Only the last line of the output is
    // reported.
    const std::string text = error.what();
    std::fprintf(stderr, "%s\n", text.substr(0, text.find('\n')).c_str());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

Channel::~Channel() {
  if (descriptor_ >= 0) close(descriptor_);
}

void Channel::send(const std::string& message) {
  if (::send(descriptor_, message.data(), message.size(), MSG_NOSIGNAL) < 0)
    fail("the other process has exited");
}

std::optional<std::string> Channel::receive(std::chrono::milliseconds timeout) {
  pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
  const int found = poll(&ready, 1, static_cast<int>(timeout.count()));
  if (found == 0) throw std::runtime_error("no end within " + std::to_string(timeout.count() / 1000) + " s");
  std::array<char, 64 * 1024> buffer;
  const ssize_t n = found < 0 ? -1 : recv(descriptor_, buffer.data(), buffer.size(), 0);
  if (n <= 0) return std::nullopt;  // messages are never empty
  return std::string(buffer.data(), static_cast<std::size_t>(n));
}

void Channel::become(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  // dup2() clears close-on-exec for the duplicate, but not if both descriptors are the same.
  if (descriptor_ == inherited_channel ? fcntl(descriptor_, F_SETFD, 0) < 0
                                       : dup2(descriptor_, inherited_channel) < 0)
    fail("dup2");
  execvp(arguments.front(), arguments.data());
  throw std::system_error(errno, std::generic_category(), "cannot run " + command.front());
}

std::optional<std::size_t> first_ready(std::initializer_list<const Channel*> channels,
                                       std::chrono::milliseconds timeout) {
  std::vector<pollfd> ready;
  for (const Channel* channel : channels)
    ready.push_back({.fd = channel->descriptor_, .events = POLLIN, .revents = 0});
  if (poll(ready.data(), ready.size(), static_cast<int>(timeout.count())) < 0) fail("poll");
  for (std::size_t i = 0; i < ready.size(); ++i)
    if (ready[i].revents != 0) return i;
  return std::nullopt;
}

Process::Process(const Pins& pins, std::size_t index, const std::function<void(Channel&)>& body)
    : output_(memfd_create("output", MFD_CLOEXEC)) {
  if (output_ < 0) fail("memfd_create");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  std::fflush(nullptr);
  pid_ = fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    close(ends[0]);
    run_child(pins, index, output_, Channel(ends[1]), body);
  }
  close(ends[1]);
  channel_ = Channel(ends[0]);
}

Process::~Process() {
  if (pid_ > 0) end(std::chrono::milliseconds{0});
  close(output_);
}

std::string Process::expect(const std::string& who, std::chrono::milliseconds timeout) {
  constexpr auto tear_down = std::chrono::seconds{5};
  std::optional<std::string> message;
  std::string reason;
  try {
    message = channel_.receive(timeout);
    if (!message) reason = end(tear_down);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!message) throw std::runtime_error(who + ": " + (reason.empty() ? "ended without a result" : reason));
  return *message;
}

std::string Process::end(std::chrono::milliseconds timeout) {
  if (pid_ <= 0) return {};  // has ended
  const auto until = std::chrono::steady_clock::now() + timeout;
  bool killed = false;
  int status = 0;
  while (waitpid(pid_, &status, killed ? 0 : WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() >= until) {
      kill(pid_, SIGKILL);
      killed = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  const std::string words = last_words();
  if (WIFEXITED(status)) return words.empty() ? "exit status " + std::to_string(WEXITSTATUS(status)) : words;
  if (killed) return "was killed: it did not end";
  return std::string("died: ") + strsignal(WTERMSIG(status)) + (words.empty() ? "" : ": " + words);
}

std::string Process::last_words() const {
  std::array<char, 4096> buffer;
  const off_t size = lseek(output_, 0, SEEK_END);
  const off_t from = size > static_cast<off_t>(buffer.size()) ? size - static_cast<off_t>(buffer.size()) : 0;
  const ssize_t n = pread(output_, buffer.data(), buffer.size(), from);
  std::string text(buffer.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.find_last_of('\n') + 1);  // npos + 1 is 0
}

std::size_t count_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(threads), end(threads)));
}

std::string scratch_path(const std::string& suffix) {
  return std::filesystem::temp_directory_path() / ("weft_bench_" + std::to_string(getpid()) + suffix);
}

}  // namespace weft::bench
