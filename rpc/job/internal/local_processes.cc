#include <weft/rpc/job/internal/local_processes.h>

#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <random>
#include <system_error>

namespace weft::rpc::detail {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::chrono::seconds failure_wait{5};

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// A port of 127.0.0.1 on which no process listens at present. It is below the range from which Linux assigns
// ports to connections and to port 0, so no other process, such as rank 1, gets it by chance before rank 0
// listens.
int free_port() {
  std::random_device random;
  std::uniform_int_distribution<int> ports(15000, 29999);
  for (int tries = 0;; ++tries) {
    const int port = ports(random);
    const int probe = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int bound = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address);
    const int error = errno;
    ::close(probe);
    if (bound == 0) return port;
    if (error != EADDRINUSE || tries == 1000) throw std::system_error(error, std::generic_category(), "bind");
  }
}

std::string how_it_ended(int status) {
  if (!WIFSIGNALED(status)) return "ended with status " + std::to_string(WEXITSTATUS(status));
  return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) +
         ")";
}

class LocalProcesses {
 public:
  LocalProcesses() {
    std::signal(SIGCHLD, SIG_DFL);  // if the signal is ignored, the system discards the statuses
    ::sigemptyset(&signals_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals_, signal);
    checked(::sigprocmask(SIG_BLOCK, &signals_, &unblocked_), "sigprocmask");
  }
  ~LocalProcesses() {
    signal_all(SIGKILL);
    ::sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
  }

  int run(std::size_t processes, const std::vector<std::string>& arguments) {
    const int port = free_port();
    job_ = std::to_string(::getpid()) + "-" + std::to_string(std::random_device{}());
    for (std::size_t rank = 0; rank < processes; ++rank) start(rank, processes, port, arguments);
    while (std::any_of(children_.begin(), children_.end(), running)) wait_for_signal();
    if (!failure_) return 0;
    std::fprintf(stderr, "weft: %s\n", failure_->text.c_str());
    return failure_->status;
  }

 private:
  struct Child {
    pid_t pid = 0;
    std::optional<int> status;  // as waitpid() returns it
  };
  struct Failure {
    std::string text;
    int status;  // as a shell reports it
  };
  static bool running(const Child& child) { return !child.status; }

  void start(std::size_t rank, std::size_t processes, int port, const std::vector<std::string>& arguments) {
    std::fflush(nullptr);  // otherwise the child would write the buffered output again
    const pid_t parent = ::getpid();
    const pid_t pid = checked(::fork(), "fork");
    if (pid != 0) return void(children_.push_back({pid, {}}));
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(processes).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    ::setenv("WEFT_JOB", job_.c_str(), 0);
    // The processes share the cores: threads within an operation would compete with the other processes.
    ::setenv("OMP_NUM_THREADS", "1", 0);
    std::string name = "worker" + std::to_string(rank);
    std::vector<char*> argv{name.data()};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv("/proc/self/exe", argv.data());
    std::perror("execv /proc/self/exe");
    ::_exit(127);
  }

  void wait_for_signal() {
    const auto left =
        std::max<Steady::duration>(end_by_ ? *end_by_ - Steady::now() : std::chrono::hours{1}, {});
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec wait{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    const int signal = ::sigtimedwait(&signals_, nullptr, &wait);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      fail({std::string("stopped by signal ") + std::to_string(signal) + " (" + ::strsignal(signal) + ")",
            128 + signal});
      signal_all(SIGTERM);
    }
    collect();
    if (end_by_ && Steady::now() >= *end_by_) {
      signal_all(SIGKILL);
      end_by_.reset();
    }
  }

  // Collects the statuses of the processes that have ended.
  void collect() {
    std::vector<std::size_t> failed;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      int status = 0;
      if (!running(children_[rank]) ||
          ::waitpid(children_[rank].pid, &status, WNOHANG) != children_[rank].pid)
        continue;
      children_[rank].status = status;
      if (status != 0) failed.push_back(rank);
    }
    if (failed.empty()) return;
    // If a process was killed, other processes may have ended because of that, and all of them are collected
    // together.
    const auto killed = std::find_if(failed.begin(), failed.end(),
                                     [&](std::size_t rank) { return WIFSIGNALED(*children_[rank].status); });
    const std::size_t first = killed != failed.end() ? *killed : failed.front();
    const int status = *children_[first].status;
    fail({"first failure: rank " + std::to_string(first) + " (process " +
              std::to_string(children_[first].pid) + ") " + how_it_ended(status),
          WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)});
  }

  void fail(Failure failure) {
    if (failure_) return;
    failure_ = std::move(failure);
    end_by_ = Steady::now() + failure_wait;
  }

  void signal_all(int signal) const {
    for (const Child& child : children_)
      if (running(child)) ::kill(child.pid, signal);
  }

  sigset_t signals_{}, unblocked_{};
  std::string job_;                           // its identity
  std::vector<Child> children_;               // by rank
  std::optional<Failure> failure_;            // the first failure
  std::optional<Steady::time_point> end_by_;  // the time at which processes that still run are killed
};

}  // namespace

int run_processes(std::size_t processes, const std::vector<std::string>& arguments) {
  return LocalProcesses().run(processes, arguments);
}

}  // namespace weft::rpc::detail
