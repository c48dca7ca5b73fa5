// Supervisor: runs the workers of this host, from their start until none of their processes is left.
//
// The first failure (an exit status other than 0, or a signal) is reported with the worker's rank and its
// last error lines. The other workers then have a short time to report their own errors and to end. After
// that, the supervisor ends them: it sends SIGTERM to their process groups, and after the grace time SIGKILL
// to all remaining descendants of this process. With keep_going, the supervisor lets the other workers run,
// and reports each further failure. A request to end (Ctrl-C) also ends the workers; a second request kills
// them at once. When the last worker has ended, the supervisor ends the processes that workers have left
// behind. While workers run, the supervisor does not wait for the reader of its output: it queues the output,
// and blocks a worker whose output queue is full. At the end the supervisor waits until all output has been
// written; after a signal it waits at most 2 s. The supervisor runs on an io_context of the main thread, and
// has no work there after its end. This process is a subreaper. Thread-safety: none; post to the io_context.
//
// With `on_exit` the supervisor is open: workers may be added and stopped at any time, the caller decides
// what an exit means, and the supervisor runs until close() or a signal. When an added worker has exited, the
// remaining processes of its process group are killed at once.
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

// The failure of a worker. Launchers send it to each other.
struct Failure {
  std::string who;          // "rank 3", "trainer1 (rank 3)"; empty: the launcher itself got a request to end
  std::string how;          // "ended with status 7", "was killed by signal 9 (Killed)"
  std::string last_error;   // the last lines of its standard error
  std::int32_t status = 1;  // the exit status of the launcher
};
WEFT_CODEC(Failure, who, how, last_error, status)

// The end of a process, from the status of waitpid. If its status is 0, the process has not failed.
Failure failure_of(int wait_status);

// A worker that is added to an open supervisor.
struct AddedWorker {
  WorkerPlan plan;
  std::vector<std::string> command;
  // Standard input is a pipe. To stop the worker, the supervisor closes the pipe. Set this for a program that
  // runs the worker on another host, such as ssh: a signal would end that program, not the worker.
  bool stopped_by_input = false;
  std::string input = {};  // the begin of its standard input, if stopped_by_input is set
};

// Lines of a worker's output, as a part of a message.
std::string indented(const std::string& lines);

struct SupervisorOptions {
  std::vector<WorkerPlan> workers;
  std::vector<std::string> command;
  std::string logs;    // a folder for NAME.out and NAME.err; empty: output is forwarded
  bool prefix = true;  // forwarded lines begin with the worker's name
  std::chrono::nanoseconds grace = std::chrono::seconds{10};
  std::chrono::nanoseconds failure_wait = std::chrono::seconds{1};  // from the first failure to SIGTERM
  bool keep_going = false;                         // a failure does not end the other workers
  std::function<void(const Failure&)> on_failure;  // for this host's first failure, before the others end
  // Makes the supervisor open. on_exit: the worker with this number has exited, perhaps with status 0.
  // on_failure is then called only for signals and for lost readers.
  std::function<void(std::size_t worker, const Failure& exit)> on_exit;
  // For every child process, including workers.
  std::function<void(pid_t child, int wait_status)> on_child_exit;
  std::function<void()> on_end;  // the last call: the supervisor has ended
  bool quiet = false;            // say() prints nothing
  bool unread = false;           // workers continue if their output has no reader
  bool append = false;           // appends to the logs of an earlier supervisor
  // Only for an open supervisor: called for SIGINT, SIGTERM and SIGHUP, and with SIGPIPE if its output has no
  // reader. true: the caller ends the workers. A second signal kills them at once.
  std::function<bool(int number, const std::string& how)> on_signal;
};

class Supervisor {
 public:
  Supervisor(asio::io_context& context, SupervisorOptions options);
  ~Supervisor();

  // Starts the workers. Throws UsageError if the program cannot be run; then no worker runs.
  void start();
  // Reports a failure on another host. The supervisor handles it like the first failure of a worker. No
  // effect after the first failure.
  void end(const Failure& failure);
  void kill();                        // kills all workers, without the grace time
  void say(const std::string& text);  // prints a line for the user, between lines of workers

  // Only for an open supervisor. add(): starts a worker and returns its number; throws UsageError or
  // system_error if the worker does not start.
  std::size_t add(AddedWorker worker);
  void stop(std::size_t worker);  // by SIGTERM, or by the end of its input; after the grace time by SIGKILL
  void close(int status);         // ends when all workers have exited, with this status
  bool ending() const;            // whether no worker can be added any more
  void abandon(int status);       // ends at once, with this status; running workers continue

  // The status of the first failure, or 0. Call it when io_context.run() has returned.
  int status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::tool::launch
