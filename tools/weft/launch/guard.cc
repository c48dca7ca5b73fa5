#include "tools/weft/launch/guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

#include "tools/weft/launch/descendants.h"

namespace weft::tool::launch {
namespace {

constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

[[noreturn]] void run_below(pid_t front, const sigset_t& unblocked, const std::function<int()>& body) {
  // In its own process group, the launcher gets Ctrl-C only once: forwarded by the front.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  if (::getppid() != front) ::_exit(1);
  become_subreaper();
  // A terminal may stop a process that writes to it from a background process group. The foreground group is
  // the front's group.
  ::signal(SIGTTOU, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &unblocked, nullptr);
  const int status = body();
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

int guarded(const std::function<int()>& body) {
  become_subreaper();
  ::signal(SIGCHLD, SIG_DFL);  // waitpid() reports nothing while it is ignored
  sigset_t awaited, unblocked;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  for (const int number : passed_on) {
    struct sigaction now{};
    ::sigaction(number, nullptr, &now);
    // SIGHUP stays ignored if it is, as with nohup. A shell ignores SIGINT for a command that a script runs
    // in the background; the launcher nevertheless ends on it.
    if (now.sa_handler != SIG_IGN || number != SIGHUP) sigaddset(&awaited, number);
  }
  ::sigprocmask(SIG_BLOCK, &awaited, &unblocked);
  std::fflush(nullptr);
  const pid_t front = ::getpid();
  const pid_t below = ::fork();
  if (below < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (below == 0) run_below(front, unblocked, body);
  ::setpgid(below, below);  // both processes call setpgid(), because either may run first

  std::optional<int> ended;
  while (!ended) {
    int number = 0;
    ::sigwait(&awaited, &number);
    if (number != SIGCHLD) {
      ::kill(below, number);
      continue;
    }
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (pid == below) ended = status;
  }
  kill_descendants();  // descendants remain only if the launcher could not end them itself
  if (WIFEXITED(*ended)) return WEXITSTATUS(*ended);
  const int number = WTERMSIG(*ended);
  if (number != SIGPIPE && number != SIGINT && number != SIGTERM)
    std::fprintf(stderr, "weft: the launcher was killed by signal %d (%s), and all workers with it\n", number,
                 ::strsignal(number));
  return 128 + number;
}

}  // namespace weft::tool::launch
