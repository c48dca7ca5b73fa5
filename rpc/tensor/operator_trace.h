// OperatorTrace: the operators that an agent's handlers run, as spans of their calls in its Tracer.
//
//   auto tracer = std::make_shared<rpc::Tracer>();
//   rpc::Layers layers = dist_optim::layers();
//   layers.push_back(tracer->layer());
//   layers.push_back(tensor::trace_operators({.details = {.shapes = true}}));
//
// Each ATen operator, autograd node and named block (RECORD_USER_SCOPE("attention")) that a handler runs
// becomes a span (rpc::Span::work) under that of the call, or under the operator or block that runs it; calls
// that are served at the same time keep theirs apart. Calls without the layer, of traces that are not
// sampled, and of agents where nobody wants it pay one look. A handler that runs a profiler of LibTorch's
// itself is refused that. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/agent/call_hook.h>
#include <weft/rpc/tensor/operator_spans.h>

#include <atomic>
#include <map>
#include <mutex>

namespace weft::tensor {

// When operators become spans, and what is noted of them.
struct OperatorTraceOptions {
  OperatorDetails details;
  bool always = true;  // false: only while a peer records (start_operators)
};

// Into an agent whose layers had a tracer's before: else failed_precondition. Serves there
// `weft.operators.start` and `.stop`.
WEFT_EXPORT rpc::Layer trace_operators(OperatorTraceOptions options = {});

// A moment at an agent: of its clock, in nanoseconds, as its spans' are.
struct OperatorRecording {
  std::uint64_t number = 0;
  std::int64_t begin = 0, end = 0;  // end: once stopped
};
WEFT_CODEC(OperatorRecording, number, begin, end)

// Has an agent with the layer note the operators of the calls whose handlers begin from then on, of all
// callers, until this recording is stopped; its spans are then those that begin and end within its times
// (rpc::collect_spans). Recordings may nest and overlap, and end with the connections of who started them.
// not_found: the agent is without the layer.
WEFT_EXPORT rpc::Future<OperatorRecording> start_operators(const rpc::Peer& peer);
// not_found: it has ended, or is another agent's.
WEFT_EXPORT rpc::Future<OperatorRecording> stop_operators(const rpc::Peer& peer,
                                                          const OperatorRecording& recording);

// The layer's part in one agent, for layers above.
class WEFT_EXPORT OperatorTrace final : public rpc::CallHook {
 public:
  OperatorTrace(std::shared_ptr<rpc::Tracer> tracer, OperatorTraceOptions options)
      : tracer_(std::move(tracer)),
        options_(options),
        wanted_(std::make_shared<std::atomic<bool>>(options.always)) {}
  static std::shared_ptr<OperatorTrace> of(rpc::AgentCore& core);  // null: the agent is without it

  // A context in which operators become spans under this one; null: they are not wanted now.
  std::unique_ptr<rpc::ContextSwitch> context_under(const rpc::TraceContext& under) const;

  // start() records until the same peer stops the recording, or is gone. stop() throws not_found for other
  // recordings.
  OperatorRecording start(const rpc::AgentId& peer);
  OperatorRecording stop(const rpc::AgentId& peer, const OperatorRecording& recording);

  bool knows(std::string_view) const override { return false; }
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;

 private:
  const std::shared_ptr<rpc::Tracer> tracer_;
  const OperatorTraceOptions options_;
  const std::shared_ptr<std::atomic<bool>> wanted_;  // written under the mutex
  std::mutex mutex_;                                 // guards the rest
  std::uint64_t recordings_ = 0;
  struct Started {
    rpc::AgentId by;
    std::int64_t at;
  };
  std::map<std::uint64_t, Started> open_;
};

}  // namespace weft::tensor
