// Supervisor: the workers of this host, from their start until none of their processes is left.
//
// The first failure (another exit status than 0, or a signal) is reported with its rank and last error. The
// other workers then have a short time in which to report their own errors and end; after it the supervisor
// ends them: SIGTERM to their process groups, after the grace time SIGKILL to whatever is left below this
// process. With keep_going it lets them run, and reports each further failure. A request to end (Ctrl-C) does
// the same; a second one kills at once. What ended workers leave behind is ended with the last of them. None
// of this waits for the reader of our output: that is queued, and workers print no faster than it is read. At
// the end all of it is waited for; after a signal for 2 s. Runs on an io_context of the main thread, whose
// work ends with it; this process is a subreaper. Thread-safety: none; post to the io_context.
//
// With `on_exit` the supervisor is open: workers are added and stopped at any time, the caller judges their
// exits, and the supervisor runs until close() or a signal. What an added worker leaves in its process group
// is killed at once.
#pragma once

#include <sys/types.h>
#include <asio/io_context.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/weft/launch/job_plan.h"

namespace weft::tool::launch {

// The end of a worker that was not good, as hosts tell it each other.
struct Failure {
  std::string who;          // "rank 3", "trainer1 (rank 3)"; empty: the launcher itself was told to end
  std::string how;          // "ended with status 7", "was killed by signal 9 (Killed)"
  std::string last_error;   // the last lines of its standard error
  std::int32_t status = 1;  // for the launcher to end with
};
WEFT_CODEC(Failure, who, how, last_error, status)

// How a process ended, of what waitpid says; status 0 is no failure.
Failure failure_of(int wait_status);

// A worker that is added to an open supervisor.
struct AddedWorker {
  WorkerPlan plan;
  std::vector<std::string> command;
  // Standard input is a pipe, and its end asks the worker to end. For a program that runs the worker
  // elsewhere, such as ssh: a signal would end that program, not the worker.
  bool stopped_by_input = false;
};

// Lines of a worker's output, as a part of a message.
std::string indented(const std::string& lines);

struct SupervisorOptions {
  std::vector<WorkerPlan> workers;
  std::vector<std::string> command;
  std::string logs;    // a folder for NAME.out and NAME.err; empty: all is passed on
  bool prefix = true;  // what is passed on has the worker's name before each line
  std::chrono::nanoseconds grace = std::chrono::seconds{10};
  std::chrono::nanoseconds failure_wait = std::chrono::seconds{1};  // from the first failure to SIGTERM
  bool keep_going = false;                         // a failure does not end the other workers
  std::function<void(const Failure&)> on_failure;  // the first of this host, before the others are ended
  // Of an open supervisor. on_exit: of the worker with this number, with status 0 too. on_failure is called
  // for signals and for lost readers only.
  std::function<void(std::size_t worker, const Failure& exit)> on_exit;
  std::function<void(pid_t child, int wait_status)> on_child_exit;  // of any child process, workers included
  std::function<void()> on_end;  // the last call: the supervisor waits for nothing any more
  bool quiet = false;            // say() says nothing
  bool unread = false;           // workers continue if nobody reads their output
  bool append = false;           // to the logs of an earlier supervisor
  // Of an open supervisor: of SIGINT, SIGTERM and SIGHUP, and SIGPIPE if nobody reads its output. True: the
  // caller ends the workers. A second signal kills them at once.
  std::function<bool(int number, const std::string& how)> on_signal;
};

class Supervisor {
 public:
  Supervisor(asio::io_context& context, SupervisorOptions options);
  ~Supervisor();

  // Throws UsageError where the program cannot be run; nothing runs then.
  void start();
  // Something failed elsewhere: as the first failure of a worker. After the first failure: nothing.
  void end(const Failure& failure);
  void kill();                        // without grace
  void say(const std::string& text);  // to the user, in turn with what workers print

  // Of an open supervisor. add(): the number of the worker; throws UsageError or system_error if it does not
  // start.
  std::size_t add(AddedWorker worker);
  void stop(std::size_t worker);  // SIGTERM or the end of its input; after the grace time SIGKILL
  void close(int status);         // ends when all workers have exited, with this status
  bool ending() const;            // no worker can be added any more
  void abandon(int status);       // ends at once, with this status; what runs is left to run

  // Once io_context.run() has returned: that of the first failure, or 0.
  int status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::tool::launch
