// The trace of a backward. The initiator records one span "backward", from the start to the end of the
// backward. Under this span are the messages of all stages (backward_methods). Under these messages, every
// worker records a span "backward nodes" for each run of nodes that a message started. Within this span, an
// OperatorTrace records the nodes and their operators.
//
// Enabled by TracerOptions::own_methods = backward_methods(). A worker without a tracer passes the trace on.
// Thread-safety: each object is used by one thread at a time.
#pragma once

#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/trace/tracer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::dist_autograd {

using Trace = std::optional<rpc::TraceContext>;  // none: not traced

// The methods by which workers start work of a backward, for TracerOptions::own_methods.
WEFT_EXPORT std::vector<std::string> backward_methods();

// The trace of a message of a backward that this agent serves.
Trace trace_of_message(rpc::CallContext& call);

// A span of this agent's work in a backward, recorded when it is destroyed. If the agent has no tracer, or
// the backward is not traced, nothing is recorded.
class BackwardSpan {
 public:
  // The span of the whole backward, at the initiator. If `parent` is nullopt, the span starts a trace.
  static BackwardSpan of_backward(rpc::AgentCore& core, const Trace& parent);
  // A run of nodes.
  static BackwardSpan of_nodes(rpc::AgentCore& core, const Trace& parent);
  BackwardSpan(BackwardSpan&&) = default;
  ~BackwardSpan();

  const Trace& context() const { return context_; }  // for the work within it
  void failed(const std::exception_ptr& error);      // marks the span as failed
  // The context that the caller enters while it runs operators of this span; null: operators are not
  // recorded.
  std::unique_ptr<rpc::ContextSwitch> operators(rpc::AgentCore& core) const;

 private:
  BackwardSpan(std::shared_ptr<rpc::Tracer> tracer, std::string name, const Trace& parent);

  std::shared_ptr<rpc::Tracer> tracer_;  // null: nothing is recorded
  Trace context_;
  rpc::Span span_;
};

}  // namespace weft::dist_autograd
