// OperatorTrace: the operators that an agent's handlers run, as spans of their calls in its Tracer.
//
//   auto tracer = std::make_shared<rpc::Tracer>();
//   rpc::Layers layers = dist_optim::layers();
//   layers.push_back(tracer->layer());
//   layers.push_back(tensor::trace_operators({.details = {.shapes = true}}));
//
// Each ATen operator, autograd node and named block (RECORD_USER_SCOPE("attention")) that a handler runs
// becomes a span (rpc::Span::work). Its parent is the span of the operator or block that runs it, otherwise
// the span of the call. Concurrent calls keep their operators separate. A call costs only one check if its
// agent does not have the layer, if its trace is not sampled, or if no recording is active. While operators
// are traced, LibTorch refuses to start its profiler in a handler. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/tensor/operator_spans.h>

#include <atomic>
#include <map>

namespace weft::tensor {

// When operators become spans, and which details are recorded.
struct OperatorTraceOptions {
  OperatorDetails details;
  bool always = true;  // false: only while a peer records (start_operators)
};

// The layer. It serves the methods `weft.operators.start` and `.stop`. The agent's layers must contain a
// tracer's layer before this one; otherwise the agent's constructor throws failed_precondition.
WEFT_EXPORT rpc::Layer trace_operators(OperatorTraceOptions options = {});

// A recording at an agent, with its times by the agent's clock in nanoseconds, like the times of spans.
struct OperatorRecording {
  std::uint64_t number = 0;
  std::int64_t begin = 0, end = 0;  // end: set by stop_operators()
};
WEFT_CODEC(OperatorRecording, number, begin, end)

// Starts a recording at an agent with the layer. Until it is stopped, the agent records the operators of all
// handlers that start in this time, for the calls of all peers. The spans of the recording are the spans from
// rpc::collect_spans() that begin and end within its times. Recordings may nest and overlap. If the peer that
// started a recording is gone, the recording ends. not_found: the agent does not have the layer.
WEFT_EXPORT rpc::Future<OperatorRecording> start_operators(const rpc::Peer& peer);
// Stops a recording. not_found: the recording has ended, or another agent has started it.
WEFT_EXPORT rpc::Future<OperatorRecording> stop_operators(const rpc::Peer& peer,
                                                          const OperatorRecording& recording);

// The layer of one agent, for higher layers.
class WEFT_EXPORT OperatorTrace final : public rpc::CallHook {
 public:
  OperatorTrace(std::shared_ptr<rpc::Tracer> tracer, OperatorTraceOptions options)
      : tracer_(std::move(tracer)),
        options_(options),
        wanted_(std::make_shared<std::atomic<bool>>(options.always)) {}
  // The layer's object of this agent; null: the agent does not have the layer.
  static std::shared_ptr<OperatorTrace> of(const rpc::CallHost& host);

  // A context in which operators become spans under `under`; null: no recording is active.
  std::unique_ptr<rpc::ContextSwitch> context_under(const rpc::TraceContext& under) const;

  // start() records until the same peer stops the recording, or is gone. stop() throws not_found if this peer
  // has no such recording.
  OperatorRecording start(const rpc::AgentId& peer);
  OperatorRecording stop(const rpc::AgentId& peer, const OperatorRecording& recording);

  bool knows(std::string_view) const override { return false; }
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;

 private:
  const std::shared_ptr<rpc::Tracer> tracer_;
  const OperatorTraceOptions options_;
  const std::shared_ptr<std::atomic<bool>> wanted_;  // written with the mutex locked
  rpc::Mutex mutex_;
  std::uint64_t recordings_ WEFT_GUARDED_BY(mutex_) = 0;
  struct Started {
    rpc::AgentId starter;
    std::int64_t at;
  };
  std::map<std::uint64_t, Started> open_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::tensor
