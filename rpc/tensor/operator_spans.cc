// A Line is one line of work, such as a handler across its suspensions. While it runs on a thread, its
// observer is a thread-local callback of at::RecordFunction, and the Line itself is the thread's profiler
// state. LibTorch propagates both to the threads of the autograd engine. An operator's span is a child of the
// innermost open span of the same thread, otherwise of the innermost open span of the line's own thread.
#include <weft/rpc/tensor/operator_spans.h>

#include <weft/rpc/core/mutex.h>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <algorithm>
#include <map>
#include <thread>

namespace weft::tensor {
namespace {

namespace profiler = torch::profiler::impl;

std::string shape_of(const at::Tensor& tensor) {
  std::string text = "[";
  // Nested tensors have no sizes, and symbolic sizes are unknown.
  if (tensor.defined() && !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    for (const auto size : tensor.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string shapes_of(c10::ArrayRef<const c10::IValue> inputs) {
  std::string text = "[";
  for (const c10::IValue& input : inputs) {
    if (text.size() > 1) text += ", ";
    if (input.isTensor()) {
      text += shape_of(input.toTensor());
    } else if (input.isTensorList()) {
      std::string list;
      for (const at::Tensor& tensor : input.toTensorVector())
        list += (list.empty() ? "" : ", ") + shape_of(tensor);
      text += "[" + list + "]";
    } else {
      text += "[]";
    }
  }
  return text + "]";
}

// The open operators of one line of work. As it is the thread's profiler state, LibTorch refuses to start
// another profiler within the line, and allocators report to it.
class Line final : public profiler::ProfilerStateBase, public std::enable_shared_from_this<Line> {
 public:
  Line(std::shared_ptr<rpc::Tracer> tracer, rpc::TraceContext under, OperatorDetails details,
       std::shared_ptr<const std::atomic<bool>> wanted)
      : profiler::ProfilerStateBase(
            profiler::ProfilerConfig(profiler::ProfilerState::CPU, details.shapes, details.memory)),
        tracer_(std::move(tracer)),
        under_(std::move(under)),
        details_(details),
        wanted_(std::move(wanted)) {}

  profiler::ActiveProfilerType profilerType() override { return profiler::ActiveProfilerType::NONE; }

  // The line continues on this thread.
  void enter() {
    rpc::MutexLock lock(mutex_);
    home_ = std::this_thread::get_id();
  }

  static at::RecordFunctionCallback observer(const OperatorDetails& details) {
    return at::RecordFunctionCallback(&Line::started, &Line::ended)
        .needsInputs(details.shapes)
        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                 at::RecordScope::TORCHSCRIPT_FUNCTION, at::RecordScope::CUSTOM_CLASS,
                 at::RecordScope::USER_SCOPE});
  }

  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device device) override {
    rpc::MutexLock lock(mutex_);
    if (Open* open = innermost()) open->bytes[device.str()] += bytes;
  }

 private:
  // An operator that runs. LibTorch passes it to ended(), which may run on another thread if a block contains
  // a suspension.
  struct Open final : at::ObserverContext {
    std::shared_ptr<Line> line;
    std::thread::id thread;  // empty: the line's own thread, wherever that runs
    rpc::Span span;
    std::map<std::string, std::int64_t> bytes;  // by device
  };

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
    auto* line = dynamic_cast<Line*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
    return line != nullptr && *line->wanted_ ? line->begin(function) : nullptr;
  }
  static void ended(const at::RecordFunction&, at::ObserverContext* context) {
    if (auto* open = static_cast<Open*>(context)) open->line->end(*open);
  }

  // The calling thread if it is a thread of the engine; empty for the line's own thread.
  std::thread::id thread() const WEFT_REQUIRES(mutex_) {
    const auto here = std::this_thread::get_id();
    return here == home_ ? std::thread::id() : here;
  }
  Open* innermost_of(std::thread::id thread) const WEFT_REQUIRES(mutex_) {
    const auto found =
        std::find_if(open_.rbegin(), open_.rend(), [&](const Open* open) { return open->thread == thread; });
    return found != open_.rend() ? *found : nullptr;
  }
  Open* innermost() const WEFT_REQUIRES(mutex_) {
    Open* here = innermost_of(thread());
    return here != nullptr ? here : innermost_of({});
  }

  std::unique_ptr<Open> begin(const at::RecordFunction& function) {
    auto open = std::make_unique<Open>();
    open->line = std::static_pointer_cast<Line>(shared_from_this());
    const rpc::TraceContext own = tracer_->span_under(under_);
    open->span.trace_high = own.trace_high;
    open->span.trace_low = own.trace_low;
    open->span.id = own.span;
    open->span.name = function.name();
    open->span.work = true;
    if (details_.shapes) open->span.notes["shapes"] = shapes_of(function.inputs());
    rpc::MutexLock lock(mutex_);
    const Open* parent = innermost();
    open->span.parent = parent != nullptr ? parent->span.id : under_.span;
    open->thread = thread();
    open_.push_back(open.get());
    open->span.begin = tracer_->now();
    return open;
  }

  void end(Open& open) {
    open.span.end = tracer_->now();
    {
      rpc::MutexLock lock(mutex_);
      std::erase(open_, &open);
      for (Open* outer : open_)
        if (outer->span.id == open.span.parent)
          for (const auto& [device, bytes] : open.bytes) outer->bytes[device] += bytes;
    }
    for (const auto& [device, bytes] : open.bytes) open.span.notes["bytes." + device] = std::to_string(bytes);
    tracer_->add(std::move(open.span));
  }

  const std::shared_ptr<rpc::Tracer> tracer_;
  const rpc::TraceContext under_;
  const OperatorDetails details_;
  const std::shared_ptr<const std::atomic<bool>> wanted_;
  rpc::Mutex mutex_;
  std::thread::id home_ WEFT_GUARDED_BY(mutex_);
  std::vector<Open*> open_ WEFT_GUARDED_BY(mutex_);  // in the order in which they started
};

// Makes the line observe the thread on which it runs. Earlier observers of the thread (for example a profiler
// around the program's loop) do not see the line's operators, because they would mistake the line's state for
// theirs.
class OperatorSpans final : public rpc::ContextSwitch {
 public:
  OperatorSpans(std::shared_ptr<Line> line, const OperatorDetails& details)
      : line_(std::move(line)), details_(details) {}

  void enter() override {
    outside_ = {at::get_record_function_tls_(), c10::ThreadLocalDebugInfo::current()};
    if (begun_) {
      set(inside_);
    } else {
      at::set_record_function_tls_({});
      at::addThreadLocalCallback(Line::observer(details_));
      c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, line_);
      begun_ = true;
    }
    line_->enter();
  }
  void leave() override {
    inside_ = {at::get_record_function_tls_(), c10::ThreadLocalDebugInfo::current()};
    set(outside_);
  }

 private:
  struct State {
    at::RecordFunctionTLS observers;
    std::shared_ptr<c10::ThreadLocalDebugInfo> info;
  };
  static void set(const State& state) {
    at::set_record_function_tls_(state.observers);
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(state.info);
  }

  const std::shared_ptr<Line> line_;
  const OperatorDetails details_;
  bool begun_ = false;
  State inside_, outside_;
};

}  // namespace

std::unique_ptr<rpc::ContextSwitch> make_operator_spans(std::shared_ptr<rpc::Tracer> tracer,
                                                        rpc::TraceContext under, OperatorDetails details,
                                                        std::shared_ptr<const std::atomic<bool>> wanted) {
  return std::make_unique<OperatorSpans>(
      std::make_shared<Line>(std::move(tracer), std::move(under), details, std::move(wanted)), details);
}

}  // namespace weft::tensor
