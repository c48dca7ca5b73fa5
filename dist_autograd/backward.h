// The data in the messages of one backward: its id, its options, and its results so far. Thread-safety:
// values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/rpc/call/call_options.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <vector>

namespace weft::dist_autograd {

// Selects the messages of the pass that take part in the backward. If fast succeeds, both modes give the same
// gradients.
//   smart: the messages on which the roots depend. Other messages cost nothing, and their calls need not have
//          completed.
//   fast:  all messages. The backward first waits for all calls of the pass, on every worker. If the roots do
//          not depend on a message, the backward fails with an error that names the message (in
//          torch.distributed.autograd's FAST mode, the backward waits for ever).
enum class BackwardMode : std::uint8_t { smart, fast };

// How one backward runs.
struct BackwardOptions {
  // Keep the saved tensors of the forward, so that another backward can run over the same graph.
  bool retain_graph = false;
  // Record the backward itself, including its messages between workers, so that another backward of this pass
  // can differentiate the gradients. The graph is also kept. Not in fast mode.
  bool create_graph = false;
  BackwardMode mode = BackwardMode::smart;
  // true: each worker runs its nodes in two parts. The first part has the nodes whose gradients leave the
  // worker, the second part has the nodes that lead only to leaves of the worker.
  // The second part runs when the first part has run on every worker or, if a pipeline stage holds the pass,
  // when the stage calls PassTurns::run_weights(). Not with create_graph.
  bool defer_weights = false;
  // Starts at the call of backward(). When it expires, the pass ends on every worker with deadline_exceeded,
  // even if a worker does not answer.
  std::chrono::nanoseconds timeout = rpc::no_timeout;

  // Whether nodes keep the tensors that the forward saved.
  bool keeps_graph() const { return retain_graph || create_graph; }
};
WEFT_CODEC(BackwardOptions, retain_graph, create_graph, mode,
           defer_weights)  // without `timeout`: only the initiator uses it

// One backward of a pass. A pass may have several, one after another, started by different workers.
struct BackwardId {
  std::uint64_t initiator = 0;  // the initiator's incarnation
  std::uint64_t number = 0;     // counts the initiator's backwards of this pass
  friend auto operator<=>(const BackwardId&, const BackwardId&) = default;
};
WEFT_CODEC(BackwardId, initiator, number)

// The backward to which a message belongs. If the receiver has no share in this backward yet, the message
// starts one.
struct Backward {
  BackwardId id;
  BackwardOptions options;
};
WEFT_CODEC(Backward, id, options)

// The stages of a backward. Each starts at the initiator and has completed everywhere when its messages are
// acknowledged (termination.h).
//   run:     every node for which all gradients have arrived
//   explore: find the live messages, which can be reached from nodes that have a part of their gradients
//   resume:  run the nodes that waited for gradients of other messages, because these will never arrive
//   weights: run the deferred nodes (only with defer_weights; before finalize)
//   finalize: run the finalize hooks (pass_hooks.h), and wait for the work that hooks have started (only if
//             some worker has hooks; no gradient can arrive any more on any worker)
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
  std::vector<rpc::AgentId> workers;  // the workers whose shares were started
  bool waiting = false;               // some node waits for gradients that may never arrive
  bool wants_finalize = false;        // some worker has hooks on gradients
  std::vector<Returned> returned;     // for the receiver of the acknowledgement, from its sender
};
WEFT_CODEC(Report, workers, waiting, wants_finalize, returned)

}  // namespace weft::dist_autograd
