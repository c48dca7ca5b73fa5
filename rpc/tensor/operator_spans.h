// OperatorSpans: records the operators of one handler or one backward as spans under one span of a Tracer.
//
// LibTorch reports them through at::RecordFunction: ATen operators, autograd nodes and the blocks that the
// program names (RECORD_USER_SCOPE). The observer is thread-local while the context is entered, and never
// global. It is stored like a profiler's state, so at::ThreadLocalState propagates it, also to the threads of
// the autograd engine. OperatorSpans is a ContextSwitch; see executor.h for its thread-safety. Operators
// called by intra-op threads (at::parallel_for) are not seen.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/trace/tracer.h>

#include <atomic>
#include <memory>

namespace weft::tensor {

// The recorded details of an operator, in addition to its name and time.
struct OperatorDetails {
  // "shapes": the shapes of the inputs, as in "[[2, 3], [3, 4], []]". Inputs that are not tensors have [],
  // too.
  bool shapes = false;
  // "bytes.DEVICE": the bytes allocated minus the bytes freed while the operator ran, including its callees.
  bool memory = false;
};

// Makes the context. under: a sampled span of the tracer's agent. wanted: while it is false, nothing is
// recorded.
WEFT_EXPORT std::unique_ptr<rpc::ContextSwitch> make_operator_spans(
    std::shared_ptr<rpc::Tracer> tracer, rpc::TraceContext under, OperatorDetails details,
    std::shared_ptr<const std::atomic<bool>> wanted);

}  // namespace weft::tensor
