// OperatorSpans: the operators that run in one line of work (a handler's, a backward's) as spans under one
// span of a Tracer.
//
// LibTorch tells of them by at::RecordFunction: ATen operators, autograd nodes and the blocks that the
// program names (RECORD_USER_SCOPE). The observer is one of the thread's while the context is entered, never
// a global one, and stands where LibTorch has the state of a profiler: it goes where at::ThreadLocalState
// goes, also to the engine's threads. A ContextSwitch; see executor.h for its thread-safety. What intra-op
// threads (at::parallel_for) call themselves is not seen.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/trace/tracer.h>

#include <atomic>
#include <memory>

namespace weft::tensor {

// What is noted of an operator, in addition to its name and time.
struct OperatorDetails {
  bool shapes = false;  // note "shapes": of the inputs, as in "[[2, 3], [3, 4], []]"; [] also for no tensor
  bool memory = false;  // notes "bytes.DEVICE": allocated less freed while it ran, what it called included
};

// under: a sampled span of the tracer's agent. wanted: while it is false nothing is noted.
WEFT_EXPORT std::unique_ptr<rpc::ContextSwitch> make_operator_spans(
    std::shared_ptr<rpc::Tracer> tracer, rpc::TraceContext under, OperatorDetails details,
    std::shared_ptr<const std::atomic<bool>> wanted);

}  // namespace weft::tensor
