#include "tools/weft/launch/supervisor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <asio/buffer.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "tools/weft/duration.h"
#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"
#include "tools/weft/launch/descendants.h"
#include "tools/weft/launch/output.h"
#include "tools/weft/launch/output_queue.h"
#include "tools/weft/launch/process.h"
#include "tools/weft/launch/worker_output.h"

namespace weft::tool::launch {
namespace {

using asio::posix::stream_descriptor;

constexpr auto settle_time = std::chrono::seconds{2};
// For a program that stops the worker on another host, in addition to the grace time there.
constexpr auto remote_time = std::chrono::seconds{5};
// How long the reader of the output may take after a signal.
constexpr auto last_output_time = std::chrono::seconds{2};

bool same_file(int one, int other) {
  struct stat first{}, second{};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

std::string signal_text(int number) {
  return "signal " + std::to_string(number) + " (" + ::strsignal(number) + ")";
}

}  // namespace

struct RunningWorker {
  RunningWorker(asio::io_context& context, WorkerPlan own, OutputQueue& to_output, OutputQueue& to_errors,
                std::string prefix)
      : plan(std::move(own)),
        process(context),
        liveness(context),
        input(context),
        grace(context),
        output(context, to_output, to_errors, std::move(prefix)) {}
  const WorkerPlan plan;
  pid_t pid = 0;
  stream_descriptor process;         // the pidfd of the process: readable when the process has ended
  stream_descriptor liveness;        // its liveness pipe (process.h)
  stream_descriptor input;           // the standard input, if closing it stops the worker
  std::string first_input;           // AddedWorker::input
  asio::steady_timer grace;          // from stop() to SIGKILL
  std::optional<std::size_t> began;  // the position in the order in which workers begin to end
  std::optional<int> status;         // the status from waitpid
  WorkerOutput output;
};

std::string indented(const std::string& lines) {
  std::string text;
  LineCutter cutter;
  const auto add = [&](std::string_view line) { text += "\n    " + printable(std::string(line)); };
  cutter.take(lines, add);
  cutter.end(add);
  return text;
}

Failure failure_of(int wait_status) {
  if (WIFSIGNALED(wait_status))
    return {"", "was killed by " + signal_text(WTERMSIG(wait_status)), "", 128 + WTERMSIG(wait_status)};
  return {"", "ended with status " + std::to_string(WEXITSTATUS(wait_status)), "", WEXITSTATUS(wait_status)};
}

class Supervisor::Impl {
 public:
  Impl(asio::io_context& context, SupervisorOptions options)
      : context_(context), options_(std::move(options)), signals_(context), grace_(context) {
    const auto changed = [this] { asio::post(context_, [this] { output_changed(); }); };
    output_ = std::make_shared<OutputQueue>(changed);
    // If standard output and standard error are the same file, they share a queue, so that the order of lines
    // is kept and lines stay whole.
    errors_ = same_file(STDOUT_FILENO, STDERR_FILENO) ? output_ : std::make_shared<OutputQueue>(changed);
  }
  ~Impl() {
    if (stage_ != Stage::ended) kill_descendants();
    (void)output_->empty_within(last_output_time);
    (void)errors_->empty_within(last_output_time);
  }

  void start();
  void end(int signal);
  void fail(const Failure& failure, bool own);
  void end_survivors();
  void kill();
  void say(const std::string& text);
  std::size_t add(AddedWorker added);
  void stop(std::size_t number);
  void close(int status);
  void abandon(int status);
  bool ending() const { return stage_ != Stage::running || closed_; }

  int status_ = 0;

 private:
  enum class Stage {
    running,
    ending,   // the workers have got the signal to end
    killing,  // the workers get SIGKILL
    ended     // no process is left, but some output may not have been written yet
  };

  std::unique_ptr<RunningWorker> make(WorkerPlan plan);
  void start(RunningWorker& worker, const std::string& program, const std::vector<std::string>& command,
             bool stopped_by_input);
  void ask_to_end(RunningWorker& worker, int signal);
  rpc::Descriptor open_log(const RunningWorker& worker, const char* kind);
  void output_changed();
  void nobody_reads();
  void await_end(RunningWorker& worker);
  void find_first_failure();
  void await_signal();
  void take_signal(int number);
  void reap();
  void ended(RunningWorker& worker);
  void added_ended(RunningWorker& worker);
  void look_for_the_rest();
  void finish();
  void close_outputs();
  void leave_once_written();

  asio::io_context& context_;
  SupervisorOptions options_;
  asio::signal_set signals_;
  asio::steady_timer grace_;
  std::shared_ptr<OutputQueue> output_, errors_;  // the queues of this process's standard output and error
  std::map<std::size_t, std::unique_ptr<RunningWorker>> workers_;  // by number; an open supervisor has only
                                                                   // those that have not exited
  std::size_t next_number_ = 0;
  std::map<pid_t, int> reaped_;  // the statuses of workers that were reaped and not yet passed to ended()
  // Log files that have been opened: a worker that replaces another worker appends to its file.
  std::set<std::string> logs_;
  std::size_t running_ = 0;
  bool all_started_ = false;  // no further worker will be started
  bool closed_ = false;
  Stage stage_ = Stage::running;
  bool failed_ = false;
  std::size_t begun_ = 0;                    // workers that have begun to end
  bool settling_ = false, settled_ = false;  // a failure waits for workers that began to end before it
  bool rest_asked_ = false;                  // the processes that workers have left behind have got SIGTERM
  bool interrupted_ = false;
  bool left_ = false;  // the supervisor has ended, and waits for nothing
};

void Supervisor::Impl::start() {
  ::signal(SIGPIPE, SIG_IGN);  // a write to an output without a reader returns EPIPE instead
  const std::string program = options_.on_exit ? "" : find_program(options_.command.front());
  if (!options_.logs.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options_.logs, error);
    if (error) throw UsageError("--logs " + options_.logs + ": " + error.message());
  }
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction now{};
    ::sigaction(number, nullptr, &now);
    if (now.sa_handler != SIG_IGN || number != SIGHUP) signals_.add(number);  // guard.cc
  }
  await_signal();
  for (WorkerPlan& plan : options_.workers) {
    auto& worker = workers_[next_number_++] = make(std::move(plan));
    start(*worker, program, options_.command, false);
  }
  all_started_ = !options_.on_exit;
}

std::size_t Supervisor::Impl::add(AddedWorker added) {
  const std::string program = find_program(added.command.front());
  auto worker = make(std::move(added.plan));
  start(*worker, program, added.command, added.stopped_by_input);
  if (worker->input.is_open()) {
    worker->first_input = std::move(added.input);
    asio::async_write(worker->input, asio::buffer(worker->first_input), [](asio::error_code, std::size_t) {
      // A worker that has ended reads no input.
    });
  }
  workers_[next_number_] = std::move(worker);
  return next_number_++;
}

void Supervisor::Impl::stop(std::size_t number) {
  const auto found = workers_.find(number);
  if (found == workers_.end() || found->second->status) return;
  RunningWorker& worker = *found->second;
  const std::chrono::nanoseconds grace =
      options_.grace + (worker.input.is_open() ? remote_time : remote_time.zero());
  ask_to_end(worker, SIGTERM);
  worker.grace.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(grace));
  worker.grace.async_wait([this, &worker](asio::error_code error) {
    if (error || worker.status) return;
    say(worker.plan.title() + " did not end within " + text_of(options_.grace) + ": killed");
    ::kill(-worker.pid, SIGKILL);
  });
}

void Supervisor::Impl::ask_to_end(RunningWorker& worker, int signal) {
  if (worker.input.is_open()) return worker.input.close();
  ::kill(-worker.pid, signal);
  ::kill(-worker.pid, SIGCONT);  // a stopped process handles the signal only when it continues
}

void Supervisor::Impl::close(int status) {
  if (ending()) return;
  closed_ = all_started_ = true;
  failed_ = status != 0;
  status_ = status;
  look_for_the_rest();
}

void Supervisor::Impl::abandon(int status) {
  if (stage_ == Stage::ended) return;
  closed_ = all_started_ = failed_ = true;
  status_ = status;
  stage_ = Stage::ended;
  for (auto& [number, worker] : workers_) {
    worker->grace.cancel();
    worker->process.close();
    worker->liveness.close();
    worker->input.close();
    worker->output.close();
  }
  grace_.cancel();
  leave_once_written();
}

rpc::Descriptor Supervisor::Impl::open_log(const RunningWorker& worker, const char* kind) {
  const std::string path = options_.logs + "/" + worker.plan.name + kind;
  const int fresh = logs_.insert(path).second && !options_.append ? O_TRUNC : 0;
  rpc::Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | fresh | O_APPEND | O_CLOEXEC, 0644));
  if (!file) throw UsageError(path + ": " + std::strerror(errno));
  return file;
}

std::unique_ptr<RunningWorker> Supervisor::Impl::make(WorkerPlan plan) {
  std::string prefix;
  if (options_.prefix)
    prefix = "[" + (plan.role.empty() && plan.rank ? std::to_string(*plan.rank) : plan.name) + "] ";
  return std::make_unique<RunningWorker>(context_, std::move(plan), *output_, *errors_, std::move(prefix));
}

void Supervisor::Impl::start(RunningWorker& worker, const std::string& program,
                             const std::vector<std::string>& command, bool stopped_by_input) {
  const WorkerPlan& plan = worker.plan;
  ProcessStart begin{program, command, environment_with(plan.environment), plan.cores};
  WorkerOutput::Ends ends;
  if (!options_.logs.empty()) {
    ends = {open_log(worker, ".out"), open_log(worker, ".err")};
    worker.output.use_error_file(options_.logs + "/" + plan.name + ".err");
  } else {
    ends = worker.output.open_pipes();
  }
  begin.out = ends.out.get();
  begin.error = ends.error.get();
  Pipe liveness = make_pipe();
  worker.liveness.assign(liveness.read.release());
  begin.liveness = liveness.write.get();
  Pipe input;
  if (stopped_by_input) {
    input = make_pipe();
    worker.input.assign(input.write.release());
    begin.in = input.read.get();
  }
  worker.pid = spawn(begin);
  // Closes this process's copies of the descriptors. Otherwise the pipes would stay open, and the end of the
  // worker would not be detected.
  ends = {};
  liveness.write.reset();
  input.read.reset();
  ++running_;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, worker.pid, 0));
  if (pidfd < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open (Linux 5.3 has it)");
  worker.process.assign(pidfd);
  worker.output.begin();
  await_end(worker);
}

// --- Output ---

void Supervisor::Impl::say(const std::string& text) {
  if (!options_.quiet) errors_->add(STDERR_FILENO, "weft: " + text + "\n");
}

// The queues of this process's output have changed: there is room again, all output is written, or the output
// has no reader any more.
void Supervisor::Impl::output_changed() {
  if (left_) return;
  for (auto& [number, worker] : workers_) worker->output.resume();
  leave_once_written();
}

// Ends with the status of a program that was killed by SIGPIPE.
void Supervisor::Impl::nobody_reads() {
  if (failed_ || options_.unread) return;
  failed_ = true;
  status_ = 128 + SIGPIPE;
  const std::string how = "has ended: its output is no longer read";
  if (options_.on_signal && options_.on_signal(SIGPIPE, how)) return;
  if (options_.on_failure) options_.on_failure({"the launcher", how, "", status_});
  end(SIGTERM);
}

// --- Ends ---

// A worker that loses a peer may end before the peer has ended, because the kernel is still removing the
// peer's process. The order of the failures is nevertheless known: the kernel closes the liveness pipe of a
// process before its connections, and the loop handles events in their order. Pidfds also report ends in
// their order; SIGCHLD does not.
void Supervisor::Impl::await_end(RunningWorker& worker) {
  const auto begins = [&](asio::error_code error) {
    if (error) return;
    if (!worker.began) worker.began = begun_++;
    worker.liveness.close();
  };
  worker.liveness.async_wait(stream_descriptor::wait_read, begins);
  worker.process.async_wait(stream_descriptor::wait_read, [&](asio::error_code error) {
    if (!error) ended(worker);
  });
}

void Supervisor::Impl::reap() {
  int status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto is_it = [pid](const auto& each) { return each.second->pid == pid && !each.second->status; };
    if (std::any_of(workers_.begin(), workers_.end(), is_it)) reaped_[pid] = status;
    if (options_.on_child_exit) options_.on_child_exit(pid, status);
  }
}

void Supervisor::Impl::ended(RunningWorker& worker) {
  reap();
  worker.status = reaped_.at(worker.pid);
  reaped_.erase(worker.pid);
  worker.process.close();
  --running_;
  // The liveness pipe may still be open: a process that the worker has started may have inherited it.
  if (!worker.began) worker.began = begun_++;
  if (options_.on_exit) return added_ended(worker);
  if (failed_ && options_.keep_going && stage_ == Stage::running && *worker.status != 0)
    say("another failure: " + worker.plan.title() + " " + failure_of(*worker.status).how);
  find_first_failure();
  look_for_the_rest();
}

void Supervisor::Impl::added_ended(RunningWorker& worker) {
  ::kill(-worker.pid, SIGKILL);  // a successor may need the device that a child process holds
  worker.grace.cancel();
  if (worker.input.is_open()) worker.input.close();
  worker.output.drain();
  worker.output.close();
  worker.liveness.close();
  Failure exit = failure_of(*worker.status);
  exit.who = worker.plan.title();
  exit.last_error = worker.output.last_errors();
  const auto it = std::find_if(workers_.begin(), workers_.end(),
                               [&](const auto& other) { return other.second.get() == &worker; });
  const std::size_t number = it->first;
  // Destroyed after the handlers of its operations, which are cancelled.
  asio::post(context_, [ended = std::shared_ptr<RunningWorker>(std::move(it->second))] {});
  workers_.erase(it);
  if (stage_ == Stage::running) options_.on_exit(number, exit);
  look_for_the_rest();
}

void Supervisor::Impl::find_first_failure() {
  if (failed_) return;
  RunningWorker* first = nullptr;
  for (const auto& [number, worker] : workers_)
    if (worker->status.value_or(0) != 0 && (first == nullptr || *worker->began < *first->began))
      first = worker.get();
  if (first == nullptr) return;
  const auto may_be_first = [&](const auto& each) {
    const RunningWorker& worker = *each.second;
    return !worker.status && worker.began && *worker.began < *first->began;
  };
  if (!settled_ && std::any_of(workers_.begin(), workers_.end(), may_be_first)) {
    // A worker whose liveness pipe is closed is probably ending. But it may also have only closed descriptors
    // that it does not know, so the wait is limited.
    if (settling_) return;
    settling_ = true;
    grace_.expires_after(settle_time);
    grace_.async_wait([this](asio::error_code error) {
      if (error) return;
      settled_ = true;
      find_first_failure();
    });
    return;
  }
  first->output.drain();
  Failure failure = failure_of(*first->status);
  failure.who = first->plan.title();
  failure.last_error = first->output.last_errors();
  fail(failure, true);
}

void Supervisor::Impl::fail(const Failure& failure, bool own) {
  if (failed_) return;  // a failure of another host also counts when all workers of this host have ended
  failed_ = true;
  status_ = failure.status;
  std::string text = failure.who + " " + failure.how;
  if (!failure.last_error.empty()) text += "; its last errors:" + indented(failure.last_error);
  say("first failure: " + text);
  if (own && options_.on_failure) options_.on_failure(failure);
  if (!options_.keep_going) end_survivors();
}

// The agents of workers that lost a peer detect the loss after a short time. The workers can then print their
// own errors before they get SIGTERM.
void Supervisor::Impl::end_survivors() {
  if (stage_ != Stage::running) return;
  grace_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(options_.failure_wait));
  grace_.async_wait([this](asio::error_code error) {
    if (!error) end(SIGTERM);
  });
}

void Supervisor::Impl::end(int signal) {
  if (stage_ != Stage::running) return;
  stage_ = Stage::ending;
  all_started_ = true;
  for (const auto& [number, worker] : workers_)
    if (!worker->status) ask_to_end(*worker, signal);
  grace_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(options_.grace));
  grace_.async_wait([this](asio::error_code error) {
    if (error || stage_ != Stage::ending) return;
    std::string who;
    for (const auto& [number, worker] : workers_)
      if (!worker->status) who += (who.empty() ? "" : ", ") + worker->plan.title();
    say((who.empty() ? "processes that workers have left" : who) + " did not end within " +
        text_of(options_.grace) + ": killed");
    kill();
  });
  look_for_the_rest();
}

void Supervisor::Impl::kill() {
  if (stage_ == Stage::ended) return;
  stage_ = Stage::killing;
  all_started_ = true;
  for (const pid_t pid : descendants()) ::kill(pid, SIGKILL);
}

// Called whenever a descendant of this process has ended.
void Supervisor::Impl::look_for_the_rest() {
  if (stage_ == Stage::ended) return;
  if (stage_ == Stage::killing) kill();
  if (running_ != 0 || !all_started_) return;
  const auto left = descendants();
  if (left.empty()) return finish();
  if (stage_ == Stage::killing) return;
  if (stage_ == Stage::running)
    say(std::to_string(left.size()) + (left.size() == 1 ? " process" : " processes") +
        " that the workers have left behind: ended");
  if (!std::exchange(rest_asked_, true))
    for (const pid_t pid : left) {
      ::kill(pid, SIGTERM);
      ::kill(pid, SIGCONT);
    }
  end(SIGTERM);
}

void Supervisor::Impl::finish() {
  stage_ = Stage::ended;
  for (auto& [number, worker] : workers_) worker->output.drain();
  for (auto& [number, worker] : workers_) worker->output.close();
  grace_.cancel();
  if (interrupted_) close_outputs();
  leave_once_written();
}

// A pager may stay open for hours. A launcher that was interrupted does not wait for it.
void Supervisor::Impl::close_outputs() {
  grace_.expires_after(last_output_time);
  grace_.async_wait([this](asio::error_code error) {
    if (error) return;
    output_->close();
    errors_->close();
    leave_once_written();
  });
}

void Supervisor::Impl::leave_once_written() {
  if (output_->closed()) nobody_reads();
  if (stage_ != Stage::ended || !output_->empty() || !errors_->empty()) return;
  if (std::exchange(left_, true)) return;
  grace_.cancel();
  signals_.cancel();
  if (options_.on_end) options_.on_end();
}

// --- Signals ---

void Supervisor::Impl::await_signal() {
  signals_.async_wait([this](asio::error_code error, int number) {
    if (error || left_) return;
    take_signal(number);
    if (!left_) await_signal();
  });
}

void Supervisor::Impl::take_signal(int number) {
  switch (number) {
    case SIGCHLD:
      reap();
      return look_for_the_rest();
    case SIGUSR1:  // batch systems send these signals as warnings
    case SIGUSR2:
      for (const auto& [own, worker] : workers_)
        if (!worker->status && !worker->input.is_open()) ::kill(worker->pid, number);
      return;
    default:
      break;
  }
  if (stage_ == Stage::ended) {  // only output is left
    if (!std::exchange(failed_, true)) status_ = 128 + number;
    if (!std::exchange(interrupted_, true)) close_outputs();
    return;
  }
  if (interrupted_) {
    say(signal_text(number) + " again: the workers are killed");
    return kill();
  }
  interrupted_ = true;
  if (stage_ != Stage::running) return;                          // the workers are ending already
  if (failed_) return end(number == SIGINT ? SIGINT : SIGTERM);  // the first failure's status stays
  failed_ = true;
  status_ = 128 + number;
  say(signal_text(number) + ": the workers are ended");
  const std::string how = "was ended by " + signal_text(number);
  if (options_.on_signal && options_.on_signal(number, how)) return;
  if (options_.on_failure) options_.on_failure({"the launcher", how, "", 128 + number});
  end(number == SIGINT ? SIGINT : SIGTERM);
}

Supervisor::Supervisor(asio::io_context& context, SupervisorOptions options)
    : impl_(std::make_unique<Impl>(context, std::move(options))) {}
Supervisor::~Supervisor() = default;
void Supervisor::start() { impl_->start(); }
void Supervisor::end(const Failure& failure) { impl_->fail(failure, false); }
void Supervisor::kill() { impl_->kill(); }
void Supervisor::say(const std::string& text) { impl_->say(text); }
std::size_t Supervisor::add(AddedWorker worker) { return impl_->add(std::move(worker)); }
void Supervisor::stop(std::size_t worker) { impl_->stop(worker); }
void Supervisor::close(int status) { impl_->close(status); }
void Supervisor::abandon(int status) { impl_->abandon(status); }
bool Supervisor::ending() const { return impl_->ending(); }
int Supervisor::status() const { return impl_->status_; }

}  // namespace weft::tool::launch
