#include <weft/parallel/schedule/action.h>

#include <array>

namespace weft::schedule {

std::string_view name_of(Op op) {
  static constexpr std::array<std::string_view, op_count> names = {
      "",          "F",           "I",           "W",           "B",
      "RECOMPUTE", "OVERLAP_F_B", "SEND_F",      "RECV_F",      "SEND_B",
      "RECV_B",    "WAIT_SEND_F", "WAIT_SEND_B", "REDUCE_GRAD", "WAIT_REDUCE_GRAD",
      "UNSHARD",   "RESHARD",     "STASH",       "LOAD",        "STEP"};
  return names[static_cast<std::size_t>(op)];
}

bool is_computation(Op op) { return op >= Op::forward && op <= Op::recompute; }
bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }
bool is_receive(Op op) { return op == Op::receive_activation || op == Op::receive_gradient; }
bool is_wait_send(Op op) { return op == Op::wait_send_activation || op == Op::wait_send_gradient; }
bool carries_gradient(Op op) {
  return op == Op::send_gradient || op == Op::receive_gradient || op == Op::wait_send_gradient;
}

namespace {

bool starts_edge(Op op) {
  return op == Op::send_activation || op == Op::wait_send_activation || op == Op::receive_gradient;
}

}  // namespace

Action message(Op op, int microbatch, Edge edge) {
  return {.op = op, .stage = starts_edge(op) ? edge.from : edge.to, .microbatch = microbatch, .edge = edge};
}

std::string to_string(const Action& action) {
  if (action.op == Op::idle) return "";
  std::string text;
  if (action.op == Op::overlap) {
    for (const Action& part : action.parts) {
      text += text.empty() ? '(' : ';';
      text += to_string(part);
    }
    text += ')';
  } else {
    text = std::to_string(action.stage);
  }
  text += name_of(action.op);
  if (action.microbatch >= 0) text += std::to_string(action.microbatch);
  if (action.edge.from >= 0) {
    const bool starts = starts_edge(action.op);
    const int peer = starts ? action.edge.to : action.edge.from;
    const int neighbour = action.stage + (starts ? 1 : -1);
    if (peer != neighbour) text += ':' + std::to_string(peer);
  }
  if (action.version >= 0) text += '@' + std::to_string(action.version);
  return text;
}

}  // namespace weft::schedule
