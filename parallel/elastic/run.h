// run(): trains while workers die, join and leave, without a restart of the others.
//
//   elastic::run(job, state, [&](collectives::Group group) {
//     data_parallel::DistributedDataParallel ddp{group, model};
//     for (; epoch < 10; ++epoch) ...   // commits `state`
//   });
//
// The job is an elastic world (docs/membership.md). The workers that train together are a generation, with a
// group. The body trains with this group, starting from the state. In each further generation the body runs
// again, in the same process and on the same objects:
//
//   - If a collective fails, for example because a worker has died, the survivors restore the last commit and
//     form the next generation, in the same order.
//   - If a worker makes the others wait too long (RunOptions::hang), they exclude it, and continue in the
//   same
//     way.
//   - If workers wait to join, or want to leave, commit() throws WorkersChanged on all ranks at the same
//     step. The next generation includes them, or continues without them.
//
// At the beginning of a generation, all ranks get the state of the rank with the most commits, unless all
// ranks have the same commit. docs/elastic.md describes the protocol.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/elastic/plan/generation.h>
#include <weft/parallel/elastic/state.h>
#include <weft/rpc/core/task.h>
#include <weft/rpc/job/job.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::elastic {

// The reason why run() has returned.
enum class Outcome : std::uint8_t {
  finished,  // the body has returned on all ranks
  left,      // State::leave() was called; the other workers continue
};

// The differences of a generation from this worker's previous one.
struct Change {
  collectives::Group group;
  std::uint64_t generation = 0;
  std::vector<std::string> joined = {}, gone = {};  // the names of workers
  // The rank whose state all ranks have got. nullopt: all ranks already had the same state.
  std::optional<int> synced_from = {};
};

// The limits of `weft launch --min N --max N` (WEFT_MIN_WORKERS and WEFT_MAX_WORKERS). Without a variable,
// its limit is not set. Throws invalid_argument if a variable is not a positive number.
WEFT_EXPORT WorkerLimits launcher_limits();

// The options of run(). `name` and `workers` are equal on all workers of a training. All times follow from
// the time within which the agent detects the loss of a peer (Heartbeat::timeout;
// MemberOptions::detect_within() and `weft launch --detection` set it): after a failure, a worker that does
// not answer within this time is lost, and after this time a warning names the worker for which others wait.
struct RunOptions {
  std::string name = "train";  // each training of a job needs another name
  // Below the minimum, training waits; workers above the maximum are spares. Limits that are not set are
  // those of the launcher.
  WorkerLimits workers = {};
  // A worker for which others have waited for this time, in a collective, in an exchange of messages or to
  // form a group, is excluded, although its agent answers, unless it makes progress in other groups. The
  // driver of `weft launch` ends its process. Otherwise the worker joins again when it makes progress. The
  // time must exceed the longest pause of a worker between two operations of its groups, such as a validation
  // on one rank only. 0: 12 times the detection time, or 1 minute by default.
  std::chrono::nanoseconds hang{0};
  // run() throws deadline_exceeded if for this time there are fewer workers than the minimum, or if this
  // worker waits for others that have not made progress for this time. A worker that has waited for a
  // sixtieth of this time logs the reason. 0: 120 times the detection time, or 10 minutes by default, and at
  // least 10 times `hang`.
  std::chrono::nanoseconds patience{0};
  // A worker that joins receives modules and optimizers of LibTorch during the next step of all ranks, in
  // which it has weight 0. Only for programs with State::step() and an ElasticSampler in the state
  // (docs/elastic.md).
  bool sync_later = false;
  // Throws resource_exhausted when a generation beyond this number of changes begins.
  std::optional<std::uint64_t> max_changes = {};

  // run() sets name, members, late_after (`hang`) and stall_warning (the detection time). `timeout` is at
  // least twice `hang`.
  collectives::GroupOptions group = {};
  // Called on all ranks before the body, in every generation. Use this function to give the new group to
  // objects that outlive the body (ddp->set_group(change.group)).
  std::function<void(const Change&)> on_change = {};
};

namespace detail {

WEFT_EXPORT Outcome run(rpc::Job& job, State& state, const std::function<void(collectives::Group)>& body,
                        const RunOptions& options);

}  // namespace detail

// Joins the job, and blocks until training is finished or this worker has left. If the job's store says that
// this training has finished already, logs a warning and returns at once. body: called with a
// collectives::Group; returns void or Task<void>, which runs on the calling thread. state: new, or loaded
// from a checkpoint, in which case its commits count.
//
// Throws failed_precondition in a job with a fixed world; invalid_argument if options.hang is shorter than
// the detection time, or the limits contradict each other; deadline_exceeded after options.patience;
// lease_lost if the other workers consider this one dead; unavailable if the host of the job's store is gone;
// and the exceptions of the body, except the errors of groups and peers (peer_lost, unavailable, shut_down,
// aborted, cancelled, deadline_exceeded). After three failed generations of the same workers without a commit
// between them, these errors are thrown too.
template <class Body>
Outcome run(rpc::Job& job, State& state, Body body, RunOptions options = {}) {
  const auto call = [&](collectives::Group group) {
    using Returned = std::invoke_result_t<Body&, collectives::Group>;
    if constexpr (std::is_same_v<Returned, rpc::Task<void>>) {
      job.agent().run(body(std::move(group)));
    } else {
      static_assert(std::is_void_v<Returned>, "weft: the body of elastic::run returns void or Task<void>");
      body(std::move(group));
    }
  };
  return detail::run(job, state, call, options);
}

}  // namespace weft::elastic
