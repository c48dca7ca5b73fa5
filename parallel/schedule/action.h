// Action: one entry of a rank's list in a pipeline schedule.
//
// A stage is a part of the model, a micro-batch is a part of the batch; both are numbered from 0. The
// backward of a stage computes the gradients of its inputs and of its weights: in one action, or in two.
// Messages follow the edges of the graph of stages: activations from edge.from to edge.to, gradients in the
// opposite direction. Thread-safety: values.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::schedule {

// The kinds of actions.
enum class Op : std::uint8_t {
  idle,  // an empty cell of the text form, which takes no time

  // Computations of a stage on a micro-batch.
  forward,
  input_gradient,   // the part of the backward for which the stage before waits
  weight_gradient,  // the rest of the backward
  backward,         // both
  recompute,        // the forward again, from the stage's kept inputs
  overlap,          // a forward and a backward, computed together: Action::parts

  // Messages. A send and a receive start the transfer and do not block; the computation that needs a received
  // value waits for it.
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  wait_send_activation,  // waits until the buffer of the sent value may be reused
  wait_send_gradient,

  // Parameters of a stage.
  reduce_gradient,  // start to reduce the stage's gradients over its replicas
  wait_reduce_gradient,
  unshard,         // start to gather the stage's parameters
  reshard,         // free the gathered parameters
  stash,           // keep the current weights as version `version`
  load,            // compute with version `version` from now on
  optimizer_step,  // make version `version` from the latest weights
};
// The number of kinds.
inline constexpr int op_count = static_cast<int>(Op::optimizer_step) + 1;

// An edge of the graph of stages. If a stage uses several outputs of another stage, they are one edge, and
// one message has all these values.
struct Edge {
  int from = -1, to = -1;
  auto operator<=>(const Edge&) const = default;
};

struct Action {
  Op op = Op::idle;
  int stage = -1;
  int microbatch = -1;             // -1: the action belongs to no micro-batch
  Edge edge = {};                  // of a message, or of the wait for a send
  int version = -1;                // of the weights; -1: the current version
  std::vector<Action> parts = {};  // of Op::overlap

  bool operator==(const Action&) const = default;
};

WEFT_EXPORT std::string_view name_of(Op op);  // as in the text form: "F", "SEND_F"

WEFT_EXPORT bool is_computation(Op op);  // from forward to recompute, without overlap
// Messages of both directions: activations and gradients.
WEFT_EXPORT bool is_send(Op op);
WEFT_EXPORT bool is_receive(Op op);
WEFT_EXPORT bool is_wait_send(Op op);
WEFT_EXPORT bool carries_gradient(Op op);  // a message of gradients, or the wait for it

// Returns a send, a receive or a wait along `edge`. Its stage is the end of `edge` at which it runs.
WEFT_EXPORT Action message(Op op, int microbatch, Edge edge);

// Calls visit(action) for the action, or for each part of an overlapped pair.
template <class Visit>
void for_each_part(const Action& action, Visit&& visit) {
  if (action.op == Op::overlap) {
    for (const Action& part : action.parts) visit(part);
  } else {
    visit(action);
  }
}

// The text form of one action (text.h), such as "3F1".
WEFT_EXPORT std::string to_string(const Action& action);

}  // namespace weft::schedule
