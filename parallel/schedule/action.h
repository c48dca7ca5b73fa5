// Action: one entry of a rank's list in a pipeline schedule.
//
// A stage is a part of the model, a micro-batch a part of the batch; both are numbered from 0. A full
// backward is an input gradient and a weight gradient in one. Messages follow the edges of the graph of
// stages: activations from edge.from to edge.to, gradients in the opposite direction. Thread-safety: values.
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
  input_gradient,   // the part of the backward that the stage before waits for
  weight_gradient,  // the rest of the backward
  backward,         // both
  recompute,        // the forward again, from the stage's kept inputs
  overlap,          // `parts`, computed together: a forward and a backward

  // Messages. A send and a receive start the transfer and do not block; the computation that needs a received
  // value waits for it.
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  wait_send_activation,  // until the sent buffer may be reused
  wait_send_gradient,

  // Parameters of a stage.
  reduce_gradient,  // start to reduce the stage's gradients over its replicas
  wait_reduce_gradient,
  unshard,         // start to gather the stage's parameters
  reshard,         // drop what was gathered
  stash,           // keep the current weights as version `version`
  load,            // compute with version `version` from now on
  optimizer_step,  // make version `version` from the latest weights
};
// The number of kinds.
inline constexpr int op_count = static_cast<int>(Op::optimizer_step) + 1;

// An edge of the graph of stages; parallel edges between two stages are one edge, whose message has all
// values.
struct Edge {
  int from = -1, to = -1;
  auto operator<=>(const Edge&) const = default;
};

struct Action {
  Op op = Op::idle;
  int stage = -1;
  int microbatch = -1;  // -1: of no micro-batch
  Edge edge = {};       // of a message, and of the wait for its end
  int version = -1;     // of the weights; -1: the current one
  std::vector<Action> parts = {};

  bool operator==(const Action&) const = default;
};

WEFT_EXPORT std::string_view name_of(Op op);  // as in the text form: "F", "SEND_F"

WEFT_EXPORT bool is_computation(Op op);  // of one stage: forward to recompute
// Messages of both directions: activations and gradients.
WEFT_EXPORT bool is_send(Op op);
WEFT_EXPORT bool is_receive(Op op);
WEFT_EXPORT bool is_wait_send(Op op);
WEFT_EXPORT bool carries_gradient(Op op);  // a message, or the wait for one

// A send, receive or wait of `stage` along `edge`, one end of which is `stage`.
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
