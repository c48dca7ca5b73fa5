// A child process of a test.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace weft::test {

inline void say(int pipe, const std::string& text) {
  const std::string line = text + "\n";
  if (::write(pipe, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(1);
}

inline std::string line_of(int pipe) {  // empty once the other side has ended
  std::string text;
  for (char c; ::read(pipe, &c, 1) == 1 && c != '\n';) text += c;
  return text;
}

// What a process does after fork(): it runs `body`, and exits with 0, or with 1 after an exception. The
// system kills it after `time`.
template <class Body>
[[noreturn]] void run_as_child(Body& body, std::chrono::seconds time) {
  ::alarm(static_cast<unsigned>(time.count()));
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

// Runs `body` until the child is killed. `body` gets a pipe to write to and, if it has a second parameter,
// one to read from. The child ends with its parent. Create it before the parent has threads, because a child
// of a process with threads may not create threads.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) {
    int ends[2], orders[2];
    if (::pipe(ends) != 0 || ::pipe(orders) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      ::close(orders[1]);
      if constexpr (std::is_invocable_v<Body&, int, int>) {
        body(ends[1], orders[0]);
      } else {
        body(ends[1]);
      }
      while (true) ::pause();
    }
    ::close(ends[1]);
    ::close(orders[0]);
    from_ = ends[0];
    to_ = orders[1];
  }
  ~Child() {
    kill();
    ::close(from_);
    ::close(to_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::string line() { return line_of(from_); }  // the line that the child wrote
  void tell(const std::string& text) { say(to_, text); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  void stop() {  // until go_on(); the child has stopped when this returns
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void go_on() { ::kill(pid_, SIGCONT); }

 private:
  pid_t pid_ = -1;
  int from_ = -1, to_ = -1;
};

}  // namespace weft::test
