#include <weft/dist_autograd/backward_trace.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/backward_service.h>
#include <weft/rpc/tensor/operator_trace.h>

namespace weft::dist_autograd {
namespace {

template <auto Method>
std::string name() {
  return std::string(rpc::FoundMethod<Method>::name);
}

}  // namespace

std::vector<std::string> backward_methods() {
  return {name<&BackwardService::root>(), name<&BackwardService::begin>(),
          name<&BackwardService::gradients>(), name<&BackwardService::discover>()};
}

Trace trace_of_message(rpc::CallContext& call) {
  if (auto own = rpc::trace_of(call)) return own;
  const auto traceparent = call.metadata(rpc::traceparent_key);
  if (!traceparent) return std::nullopt;
  return rpc::TraceContext::parse(*traceparent, call.metadata(rpc::tracestate_key).value_or(""));
}

BackwardSpan::BackwardSpan(std::shared_ptr<rpc::Tracer> tracer, std::string name, const Trace& parent)
    : tracer_(std::move(tracer)), context_(parent) {
  if (tracer_ == nullptr) return;
  context_ = tracer_->span_under(parent);
  span_.trace_high = context_->trace_high;
  span_.trace_low = context_->trace_low;
  span_.id = context_->span;
  span_.parent = parent ? parent->span : 0;
  span_.name = std::move(name);
  span_.work = true;
  span_.begin = tracer_->now();
}

BackwardSpan::~BackwardSpan() {
  if (tracer_ == nullptr || !context_->sampled) return;
  span_.end = tracer_->now();
  tracer_->add(std::move(span_));
}

BackwardSpan BackwardSpan::of_backward(rpc::AgentCore& core, const Trace& parent) {
  auto tracer = rpc::Tracer::of(core);
  if (tracer != nullptr && !tracer->traces(rpc::FoundMethod<&BackwardService::begin>::name)) tracer = nullptr;
  return {std::move(tracer), "backward", parent};
}

BackwardSpan BackwardSpan::of_nodes(rpc::AgentCore& core, const Trace& parent) {
  return {parent ? rpc::Tracer::of(core) : nullptr, "backward nodes", parent};
}

void BackwardSpan::failed(const std::exception_ptr& error) { span_.error = rpc::span_error(error); }

std::unique_ptr<rpc::ContextSwitch> BackwardSpan::operators(rpc::AgentCore& core) const {
  if (tracer_ == nullptr) return nullptr;
  const auto trace = tensor::OperatorTrace::of(core);
  return trace != nullptr ? trace->context_under(*context_) : nullptr;
}

}  // namespace weft::dist_autograd
