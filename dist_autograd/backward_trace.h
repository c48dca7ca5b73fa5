// What a tracer notes of a backward: at the initiator one span "backward" from its beginning to its end,
// under it the messages of all stages (backward_methods), and under those, on every worker, a span "backward
// nodes" for each run of the nodes that a message set off, in which an OperatorTrace notes the nodes and
// their operators.
//
// Asked for by TracerOptions::own_methods = backward_methods(). A worker without a tracer hands the trace on.
// Thread-safety: each object is used by one thread at a time.
#pragma once

#include <weft/rpc/agent/outgoing_call.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/trace/tracer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::dist_autograd {

using Trace = std::optional<rpc::TraceContext>;  // none: nobody traces

// The methods by which workers set off a backward's work, for TracerOptions::own_methods.
WEFT_EXPORT std::vector<std::string> backward_methods();

// What a message of a backward that is served here belongs to.
Trace trace_of_message(rpc::CallContext& call);

// A piece of work of this agent's part in a backward; noted when it ends. Nothing without a tracer, or of a
// backward that nobody traces.
class BackwardSpan {
 public:
  // The initiator's, of the whole. parent: none begins a trace.
  static BackwardSpan of_backward(rpc::AgentCore& core, const Trace& parent);
  // A run of nodes.
  static BackwardSpan of_nodes(rpc::AgentCore& core, const Trace& parent);
  BackwardSpan(BackwardSpan&&) = default;
  ~BackwardSpan();

  const Trace& context() const { return context_; }  // for what happens in it
  void failed(const std::exception_ptr& error);
  // Entered while operators run in it; null: they are not noted.
  std::unique_ptr<rpc::ContextSwitch> operators(rpc::AgentCore& core) const;

 private:
  BackwardSpan(std::shared_ptr<rpc::Tracer> tracer, std::string name, const Trace& parent);

  std::shared_ptr<rpc::Tracer> tracer_;  // null: nothing is noted
  Trace context_;
  rpc::Span span_;
};

}  // namespace weft::dist_autograd
