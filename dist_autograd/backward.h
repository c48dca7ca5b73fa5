// What the messages of one backward carry: whose backward it is, how it runs, and what it has met so far.
// Thread-safety: values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/rpc/agent/call_options.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <vector>

namespace weft::dist_autograd {

// Which messages of the pass take part. Both give the same gradients wherever fast ends well.
//   smart: those that the roots depend on. Others cost nothing, and need not have ended.
//   fast:  all. backward first waits for all calls of the pass, on every worker; a message that was never
//   used is
//          an error that names it (torch.distributed.autograd's FAST mode waits for it for ever).
enum class BackwardMode : std::uint8_t { smart, fast };

struct BackwardOptions {
  // Keep what the forward saved: another backward may follow over the same graph.
  bool retain_graph = false;
  // Record the backward itself, its messages between workers too: gradients can be differentiated, by another
  // backward of this pass. Keeps the graph as well. Not in fast.
  bool create_graph = false;
  BackwardMode mode = BackwardMode::smart;
  // Each worker runs two parts, one after the other: first the nodes whose gradients leave the worker, then
  // those that lead to its leaves alone (engine/node_executor.h). The second part runs once the first has run
  // on every worker or, where a pipeline stage holds the pass, at PassTurns::run_weights(). Not with
  // create_graph.
  bool defer_weights = false;
  // From the call of backward() on. Once it has passed, the pass ends on every worker with
  // deadline_exceeded, also if a worker does not answer.
  std::chrono::nanoseconds timeout = rpc::no_timeout;

  bool keeps_graph() const { return retain_graph || create_graph; }
};
WEFT_CODEC(BackwardOptions, retain_graph, create_graph, mode,
           defer_weights)  // the timeout is the initiator's

// One backward of a pass. A pass may see several, one after another, begun by different workers.
struct BackwardId {
  std::uint64_t initiator = 0;  // incarnation
  std::uint64_t number = 0;     // its n-th of this pass
  friend auto operator<=>(const BackwardId&, const BackwardId&) = default;
};
WEFT_CODEC(BackwardId, initiator, number)

// What a message sends everybody who gets it into.
struct Backward {
  BackwardId id;
  BackwardOptions options;
};
WEFT_CODEC(Backward, id, options)

// The stages of a backward. Each begins at the initiator and is over everywhere when its messages are
// acknowledged (termination.h).
//   run:     every node for which all gradients have come
//   explore: which messages the nodes that wait for more depend on: they are live
//   resume:  all other messages will bring nothing: run what waited for them
//   finalize: no gradient can arrive any more, on any worker: run the finalize hooks (pass_hooks.h), and wait
//             for the work that hooks have begun. Only if some worker has hooks
//   weights: before finalize, with defer_weights: run what was deferred
enum class Stage : std::uint8_t { run, explore, resume, finalize, weights };

// Gradients of a message's tensors, for its sender.
struct Returned {
  MessageId message;
  std::vector<at::Tensor> gradients;
};
WEFT_CODEC(Returned, message, gradients)

// What an acknowledgement says of the worker that gives it, and of those whose acknowledgements it had.
struct Report {
  std::vector<rpc::AgentId> workers;  // which were set to work
  bool waiting = false;               // some node waits for gradients that may never come
  bool wants_finalize = false;        // some worker has hooks on gradients
  std::vector<Returned> returned;     // to who is given it, by the worker that gives it
};
WEFT_CODEC(Report, workers, waiting, wants_finalize, returned)

}  // namespace weft::dist_autograd
