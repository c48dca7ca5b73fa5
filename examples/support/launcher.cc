#include "support/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "support/status_lines.h"

namespace examples {
namespace {

using Clock = std::chrono::steady_clock;

// After a failure the others have this long to say what they lost, and to end by themselves.
constexpr auto timeout = std::chrono::seconds{5};

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// One that nobody listens on now.
int free_port() {
  const int probe = checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  checked(bind(probe, reinterpret_cast<sockaddr*>(&address), size), "bind");
  checked(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  close(probe);
  return ntohs(address.sin_port);
}

// What one process prints on one of its streams, cut into lines.
struct Output {
  int from;  // our end of its pipe; -1 once it has ended
  FILE* to;  // stdout or stderr
  std::size_t rank;
  std::string begun;  // a line whose end has not come yet
};

struct Child {
  pid_t pid;
  std::optional<int> status;  // as waitpid gives it, once it has ended
};

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was killed by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

class Launcher {
 public:
  explicit Launcher(const Launch& job) : job_(job), screen_(job.names.size()) {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&signals, signal);
    checked(sigprocmask(SIG_BLOCK, &signals, &unblocked_), "sigprocmask");
    signals_ = checked(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd");
  }
  ~Launcher() {
    for (const Child& child : children_)
      if (!child.status) kill(child.pid, SIGKILL);
  }

  int run() {
    const int port = free_port();
    for (std::size_t rank = 0; rank < job_.names.size(); ++rank) start(rank, port);
    while (running() > 0 || open_outputs() > 0) wait_for_something();
    screen_.end();
    if (!failure_.empty()) fmt::print(stderr, "{}\n", failure_);
    return failure_.empty() ? 0 : 1;
  }

 private:
  void start(std::size_t rank, int port) {
    int out[2], error[2];
    checked(pipe2(out, O_CLOEXEC), "pipe2");
    checked(pipe2(error, O_CLOEXEC), "pipe2");
    std::fflush(nullptr);
    const pid_t launcher = getpid();
    const pid_t pid = checked(fork(), "fork");
    if (pid == 0) {
      // Dies with the launcher, however that ends.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != launcher) _exit(1);
      sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
      dup2(out[1], STDOUT_FILENO);
      dup2(error[1], STDERR_FILENO);
      become(rank, port);
    }
    close(out[1]);
    close(error[1]);
    children_.push_back({pid, {}});
    outputs_.push_back({out[0], stdout, rank, {}});
    outputs_.push_back({error[0], stderr, rank, {}});
  }

  [[noreturn]] void become(std::size_t rank, int port) const {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(job_.names.size()).c_str(), 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    // As many processes as this machine has cores, or more: threads within an operation would only spin on
    // each other.
    setenv("OMP_NUM_THREADS", "1", 0);
    if (screen_.is_terminal()) setenv(status_variable, "1", 1);
    std::vector<char*> argv{const_cast<char*>(job_.names[rank].c_str())};
    for (const std::string& argument : job_.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    execv("/proc/self/exe", argv.data());
    std::perror("execv /proc/self/exe");
    _exit(127);
  }

  void wait_for_something() {
    std::vector<pollfd> waits{{signals_, POLLIN, 0}};
    std::vector<Output*> sources;
    for (Output& output : outputs_) {
      if (output.from < 0) continue;
      waits.push_back({output.from, POLLIN, 0});
      sources.push_back(&output);
    }
    if (poll(waits.data(), waits.size(), milliseconds_left()) < 0 && errno != EINTR) checked(-1, "poll");
    for (std::size_t i = 0; i < sources.size(); ++i)
      if (waits[i + 1].revents != 0) pass_on(*sources[i]);
    if (waits[0].revents != 0) take_signals();
    if (end_by_ && Clock::now() >= *end_by_) {
      for (const Child& child : children_)
        if (!child.status) kill(child.pid, SIGKILL);
      end_by_.reset();
    }
  }

  int milliseconds_left() const {
    if (!end_by_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end_by_ - Clock::now());
    return static_cast<int>(std::max(left, std::chrono::milliseconds{0}).count());
  }

  void pass_on(Output& output) {
    char bytes[4096];
    const ssize_t got = read(output.from, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
      close(std::exchange(output.from, -1));
      if (!output.begun.empty()) screen_.print(output.to, output.begun);
      return;
    }
    for (const char c : std::string_view(bytes, static_cast<std::size_t>(got))) {
      if (c == '\n') {
        screen_.print(output.to, std::exchange(output.begun, {}));
      } else if (c == '\r') {
        screen_.set_status(output.rank, std::exchange(output.begun, {}));
      } else {
        output.begun += c;
      }
    }
  }

  void take_signals() {
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;
      fail(fmt::format("stopped by {}", strsignal(static_cast<int>(info.ssi_signo))));
      for (const Child& child : children_)
        if (!child.status) kill(child.pid, SIGTERM);
    }
    std::vector<std::size_t> failed;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      int status = 0;
      if (children_[rank].status || waitpid(children_[rank].pid, &status, WNOHANG) != children_[rank].pid)
        continue;
      children_[rank].status = status;
      screen_.set_status(rank, {});
      if (status != 0) failed.push_back(rank);
    }
    if (failed.empty()) return;
    // One that was killed may be found together with those that ended because of it.
    const auto killed = [&](std::size_t rank) { return WIFSIGNALED(*children_[rank].status); };
    const auto found = std::find_if(failed.begin(), failed.end(), killed);
    const std::size_t first = found != failed.end() ? *found : failed.front();
    fail(fmt::format("first failure: {} (process {}) {}", job_.names[first], children_[first].pid,
                     how_it_ended(*children_[first].status)));
  }

  void fail(std::string what) {
    if (!failure_.empty()) return;
    failure_ = std::move(what);
    end_by_ = Clock::now() + timeout;
  }

  std::size_t running() const {
    return static_cast<std::size_t>(
        std::count_if(children_.begin(), children_.end(), [](auto& c) { return !c.status; }));
  }
  std::size_t open_outputs() const {
    return static_cast<std::size_t>(
        std::count_if(outputs_.begin(), outputs_.end(), [](auto& o) { return o.from >= 0; }));
  }

  const Launch& job_;
  StatusLines screen_;
  sigset_t unblocked_{};
  int signals_ = -1;
  std::vector<Child> children_;
  std::vector<Output> outputs_;
  std::string failure_;                      // the first
  std::optional<Clock::time_point> end_by_;  // then who still runs is killed
};

}  // namespace

int launch(const Launch& job) { return Launcher(job).run(); }

}  // namespace examples
