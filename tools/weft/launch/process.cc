#include "tools/weft/launch/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "tools/weft/errors.h"

namespace weft::tool::launch {
namespace {

bool is_program(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// Data for the child between fork and exec. The process may have threads, so the child must not allocate
// memory, and all data is prepared before the fork.
struct Prepared {
  std::vector<char*> words, variables;
  std::vector<unsigned long> cores;            // a mask
  int nothing = -1, told = -1, liveness = -1;  // /dev/null; the pipe to which an error is written
  pid_t parent = 0;
};

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void become(const ProcessStart& start, const Prepared& prepared) {
  const auto fail = [&] {
    const int error = errno;
    (void)!::write(prepared.told, &error, sizeof error);
    ::_exit(127);
  };
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != prepared.parent) ::_exit(127);
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &usual, nullptr);
  if (!prepared.cores.empty() &&
      ::syscall(SYS_sched_setaffinity, 0, prepared.cores.size() * sizeof(unsigned long),
                prepared.cores.data()) != 0)
    fail();
  if (::dup2(start.in < 0 ? prepared.nothing : start.in, STDIN_FILENO) < 0 ||
      ::dup2(start.out, STDOUT_FILENO) < 0 || ::dup2(start.error, STDERR_FILENO) < 0 ||
      ::dup2(prepared.liveness, liveness_file) < 0)
    fail();
  ::syscall(SYS_close_range, static_cast<unsigned>(liveness_file + 1), ~0U,
            CLOSE_RANGE_CLOEXEC);  // libraries may set the flag of their sockets too late or never
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(start.program.c_str(), prepared.words.data(), prepared.variables.data());
  fail();
  ::_exit(127);
}

std::system_error failed(const char* what) { return {errno, std::generic_category(), what}; }

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    throw UsageError("'" + name + "' is not an executable program");
  }
  if (name.starts_with('-')) throw UsageError("unknown option '" + name + "': see `weft launch --help`");
  const char* const variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string folder = path.substr(begin, end - begin);
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(file)) return file;
    begin = end + 1;
  }
  throw UsageError("found no program '" + name + "' in PATH");
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!changes.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) variables.push_back(name + "=" + value);
  return variables;
}

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw failed("pipe2");
  return {rpc::Descriptor(ends[0]), rpc::Descriptor(ends[1])};
}

pid_t spawn(const ProcessStart& start) {
  Prepared prepared{pointers_to(start.words), pointers_to(start.variables), {}, -1, -1, -1, ::getpid()};
  constexpr std::size_t bits = 8 * sizeof(unsigned long);
  for (const unsigned core : start.cores) {
    if (prepared.cores.size() <= core / bits) prepared.cores.resize(core / bits + 1);
    prepared.cores[core / bits] |= 1UL << core % bits;
  }
  Pipe told = make_pipe();
  // Moves the descriptor above liveness_file, the descriptor number of the liveness pipe.
  prepared.told = ::fcntl(told.write.get(), F_DUPFD_CLOEXEC, liveness_file + 1);
  prepared.liveness = ::fcntl(start.liveness, F_DUPFD_CLOEXEC, liveness_file + 1);
  told.write.reset();
  prepared.nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  // Blocks signals, so that no handler of this process runs in the child, where it would write to pipes that
  // both processes share.
  sigset_t every, before;
  sigfillset(&every);
  ::pthread_sigmask(SIG_SETMASK, &every, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become(start, prepared);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::close(prepared.told);
  ::close(prepared.liveness);
  ::close(prepared.nothing);
  int problem = 0;
  ssize_t got = 0;
  if (pid > 0)  // waits until the child has executed the program; its process group then exists, too
    while ((got = ::read(told.read.get(), &problem, sizeof problem)) < 0 && errno == EINTR) {
    }
  if (pid < 0) throw std::system_error(error, std::generic_category(), "fork");
  if (got == sizeof problem) {
    ::waitpid(pid, nullptr, 0);
    throw UsageError("'" + start.program + "' cannot be run: " + std::strerror(problem));
  }
  return pid;
}

}  // namespace weft::tool::launch
