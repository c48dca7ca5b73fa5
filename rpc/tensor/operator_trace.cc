#include <weft/rpc/tensor/operator_trace.h>

#include <weft/rpc/endpoint/agent_core.h>

namespace weft::tensor {
namespace {

// Serves start_operators and stop_operators.
struct OperatorService {
  OperatorRecording start(rpc::CallContext& call) { return trace->start(call.peer().id); }
  OperatorRecording stop(rpc::CallContext& call, OperatorRecording recording) {
    return trace->stop(call.peer().id, recording);
  }
  using Service = rpc::Service<"weft.operators", rpc::Method<"start", &OperatorService::start>,
                               rpc::Method<"stop", &OperatorService::stop>>;

  std::shared_ptr<OperatorTrace> trace;
};

}  // namespace

rpc::Layer trace_operators(OperatorTraceOptions options) {
  return [options](rpc::Agent& agent) {
    const auto& core = agent.core();
    auto tracer = rpc::Tracer::of(*core);
    if (tracer == nullptr)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "trace_operators: this agent has no tracer: give it a Tracer's layer() before "
                       "trace_operators()");
    const auto trace = std::make_shared<OperatorTrace>(std::move(tracer), options);
    core->layers().put(trace);
    core->hooks().add(trace);
    agent.serve(std::make_shared<OperatorService>(OperatorService{trace}));
    core->hooks().add_context([trace](rpc::IncomingCall& call) -> std::unique_ptr<rpc::ContextSwitch> {
      const auto under = rpc::trace_of(call);
      return under ? trace->context_under(*under) : nullptr;
    });
  };
}

rpc::Future<OperatorRecording> start_operators(const rpc::Peer& peer) {
  return peer.call<&OperatorService::start>();
}

rpc::Future<OperatorRecording> stop_operators(const rpc::Peer& peer, const OperatorRecording& recording) {
  return peer.call<&OperatorService::stop>(recording);
}

std::shared_ptr<OperatorTrace> OperatorTrace::of(const rpc::CallHost& host) {
  return host.layers().share<OperatorTrace>();
}

std::unique_ptr<rpc::ContextSwitch> OperatorTrace::context_under(const rpc::TraceContext& under) const {
  if (!under.sampled || !*wanted_) return nullptr;
  return make_operator_spans(tracer_, under, options_.details, wanted_);
}

OperatorRecording OperatorTrace::start(const rpc::AgentId& peer) {
  rpc::MutexLock lock(mutex_);
  *wanted_ = true;
  const std::int64_t now = tracer_->now();
  open_.emplace(++recordings_, Started{peer, now});
  return {recordings_, now, 0};
}

OperatorRecording OperatorTrace::stop(const rpc::AgentId& peer, const OperatorRecording& recording) {
  rpc::MutexLock lock(mutex_);
  const auto found = open_.find(recording.number);
  if (found == open_.end() || found->second.starter != peer)
    throw rpc::Error(rpc::ErrorKind::not_found,
                     "unknown recording of operators: " + std::to_string(recording.number));
  const OperatorRecording whole{recording.number, found->second.at, tracer_->now()};
  open_.erase(found);
  *wanted_ = options_.always || !open_.empty();
  return whole;
}

void OperatorTrace::peer_gone(const rpc::AgentId& peer, const rpc::Error&) {
  rpc::MutexLock lock(mutex_);
  std::erase_if(open_, [&](const auto& entry) { return entry.second.starter == peer; });
  *wanted_ = options_.always || !open_.empty();
}

}  // namespace weft::tensor
