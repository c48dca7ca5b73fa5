// run_job(): the main() of a program whose processes form a job.
//
//   rpc::Task<void> train(rpc::Agent& agent) { ... }
//   int main(int argc, char** argv) { return rpc::run_job(argc, argv, {collectives::layer()}, train); }
//
// If a launcher, Slurm, MPI or Kubernetes has started the process (started_by(), docs/launching.md), the
// process is one member of the job and runs the body. Otherwise the process starts the members itself, on
// this host, and waits for them.
#pragma once

#include <weft/rpc/job/job.h>

#include <type_traits>

namespace weft::rpc {

// How run_job() starts processes.
struct JobOptions {
  // The number of processes that run_job() starts if no launcher has started them.
  std::size_t processes = 1;
  Job::Adjust adjust = nullptr;  // changes the options of each member's agent
};

namespace detail {

WEFT_EXPORT int run_job(int argc, char** argv, Layers layers, const std::function<void(Job&)>& body,
                        const JobOptions& options);

// Runs the body on the calling thread, also if it is a Task<void>.
template <class Body, class Argument>
void run_body(Agent& agent, Body& body, Argument& argument) {
  using Returned = std::invoke_result_t<Body&, Argument&>;
  if constexpr (std::is_same_v<Returned, Task<void>>) {
    agent.run(body(argument));
  } else {
    static_assert(std::is_void_v<Returned>, "the body of a job returns void or Task<void>");
    body(argument);
  }
}

}  // namespace detail

// Call from main() while the process has one thread. `body` returns void or Task<void>. Its parameter
// determines who calls join():
//   Agent&  all members of a fixed world have joined when the body starts
//   Job&    the body calls job.join() itself, after it has served its methods
// When the body returns, the process serves the other members until no member has work left, and then leaves
// (Job::serve_until_shutdown). Standard output is line-buffered, so that lines of several processes are not
// mixed.
//
// Returns the status for main(). 0: the body has returned, or all processes that run_job() started have ended
// with status 0. 1: the body has thrown an exception. The process has then printed one line on standard
// error: "worker1 (rank 1): " and the first line of the exception's text. 2: a malformed -n. If a process
// that run_job() started has failed, the status is that of the first such process, as with weft launch: its
// exit status, or 128 plus the number of the signal that killed it. The other processes then have 5 s to end
// before they are killed, and the last line on standard error names the first failure.
//
// If no launcher has started the process, `-n N` or `-nN` among its arguments before `--` replaces
// JobOptions::processes. The started processes do not receive this argument. A process that a launcher has
// started keeps all its arguments.
template <class Body>
int run_job(int argc, char** argv, Layers layers, Body body, JobOptions options = {}) {
  return detail::run_job(
      argc, argv, std::move(layers),
      [&body](Job& job) {
        if constexpr (std::is_invocable_v<Body&, Job&>) {
          detail::run_body(job.agent(), body, job);
        } else {
          job.join().get();
          detail::run_body(job.agent(), body, job.agent());
        }
      },
      options);
}

}  // namespace weft::rpc
