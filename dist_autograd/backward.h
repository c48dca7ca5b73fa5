// The data in the messages of one backward: its id, its options, and its results so far. Thread-safety:
// values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/rpc/call/call_options.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <vector>

namespace weft::dist_autograd {

// The messages of the pass that take part. Both modes give the same gradients if fast succeeds.
//   smart: those that the roots depend on. Others cost nothing, and need not have ended.
//   fast:  all. backward first waits for all calls of the pass, on every worker. A message that was not used
//          is an error that names it (torch.distributed.autograd's FAST mode waits for it for ever).
enum class BackwardMode : std::uint8_t { smart, fast };

// How one backward runs.
struct BackwardOptions {
  // Keep the saved tensors of the forward: another backward may follow over the same graph.
  bool retain_graph = false;
  // Record the backward itself, including its messages between workers: gradients can be differentiated, by
  // another backward of this pass. Keeps the graph as well. Not in fast mode.
  bool create_graph = false;
  BackwardMode mode = BackwardMode::smart;
  // Each worker runs two parts, one after the other: first the nodes whose gradients leave the worker, then
  // those that lead only to its leaves (engine/node_executor.h). The second part runs once the first has run
  // on every worker. If a pipeline stage holds the pass, it runs at PassTurns::run_weights(). Not with
  // create_graph.
  bool defer_weights = false;
  // Starts at the call of backward(). After the timeout, the pass ends on every worker with
  // deadline_exceeded, also if a worker does not answer.
  std::chrono::nanoseconds timeout = rpc::no_timeout;

  // Whether nodes keep what the forward saved.
  bool keeps_graph() const { return retain_graph || create_graph; }
};
WEFT_CODEC(BackwardOptions, retain_graph, create_graph, mode,
           defer_weights)  // the timeout is the initiator's

// One backward of a pass. A pass may have several, one after another, started by different workers.
struct BackwardId {
  std::uint64_t initiator = 0;  // incarnation
  std::uint64_t number = 0;     // its n-th of this pass
  friend auto operator<=>(const BackwardId&, const BackwardId&) = default;
};
WEFT_CODEC(BackwardId, initiator, number)

// The backward that a message starts at its receiver.
struct Backward {
  BackwardId id;
  BackwardOptions options;
};
WEFT_CODEC(Backward, id, options)

// The stages of a backward. Each starts at the initiator and has completed everywhere when its messages are
// acknowledged (termination.h).
//   run:     every node for which all gradients have arrived
//   explore: find the messages on which the waiting nodes depend: they are live
//   resume:  no gradients will arrive for the other messages: run the nodes that waited for them
//   finalize: no gradient can arrive any more, on any worker: run the finalize hooks (pass_hooks.h), and wait
//             for the work that hooks have started. Only if some worker has hooks
//   weights: before finalize, with defer_weights: run the deferred nodes
enum class Stage : std::uint8_t { run, explore, resume, finalize, weights };

// Gradients of a message's tensors, for its sender.
struct Returned {
  MessageId message;
  std::vector<at::Tensor> gradients;
};
WEFT_CODEC(Returned, message, gradients)

// The contents of an acknowledgement, about its sender and the workers whose acknowledgements the sender
// received.
struct Report {
  std::vector<rpc::AgentId> workers;  // whose share was started
  bool waiting = false;               // some node waits for gradients that may never come
  bool wants_finalize = false;        // some worker has hooks on gradients
  std::vector<Returned> returned;     // for the receiver of the acknowledgement, from its sender
};
WEFT_CODEC(Report, workers, waiting, wants_finalize, returned)

}  // namespace weft::dist_autograd
