// Tracer: records the calls that an agent makes and serves as spans, and propagates their traces.
//
//   auto tracer = std::make_shared<rpc::Tracer>();
//   rpc::Agent agent{{.name = "market"}, {tracer->layer()}};
//
// A call that a handler makes on behalf of the call that it serves (peer.with(call)) belongs to the trace of
// that call. Any other call starts a trace, unless it has the modifier Under. The agent that starts a trace
// decides by `ratio` whether the trace is sampled, for all agents. Calls of weft's own methods ("weft.") are
// traced only if TracerOptions lists them. Spans are kept until take() or a peer (through `weft.spans`) takes
// them. If there is no room, new spans are dropped. Higher layers record more: tensor/operator_trace.h
// records the operators of handlers. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/trace/span.h>
#include <weft/rpc/trace/trace_context.h>

#include <atomic>
#include <optional>

namespace weft::rpc {

// The methods of a tracer.
inline constexpr std::string_view spans_method = "weft.spans", clock_method = "weft.clock";

struct TracerOptions {
  double ratio = 1;               // the sampled part of traces that start on this agent, from 0 to 1
  std::size_t max_spans = 65536;  // the maximum number of spans that are kept
  // Names of weft's own methods that are traced like others, for example dist_autograd::backward_methods().
  std::vector<std::string> own_methods = {};
};

class WEFT_EXPORT Tracer final : public Interceptor, public std::enable_shared_from_this<Tracer> {
 public:
  explicit Tracer(TracerOptions options = {});

  // The layer that installs the tracer into one agent, and serves `weft.spans` and `weft.clock` there. A
  // second installation throws failed_precondition.
  Layer layer();

  SpanBatch take(std::size_t max_spans = 10'000);

  // For higher layers, which record their work.
  static std::shared_ptr<Tracer> of(const CallHost& host);  // null: the agent has no tracer
  bool traces(std::string_view method) const;
  // A new span under the parent, or in a new trace.
  TraceContext span_under(const std::optional<TraceContext>& parent);
  std::int64_t now() const;  // the time of the clock of spans; call it after installation
  void add(Span span);

  Task<void> accept(CallContext& call) override;
  void answered(CallContext& call, const std::exception_ptr& error) noexcept override;
  std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string& peer,
                                     CallContext* serving) override;

 private:
  friend std::optional<TraceContext> trace_of(CallContext& call);
  friend class Under;
  struct OpenSpan;
  struct MadeSpan;
  class Watch;
  struct ServedSpan;

  OpenSpan open(const std::optional<TraceContext>& parent, std::int64_t begin);
  void end(const OpenSpan& open, std::string_view method, bool served, const std::string& peer,
           const std::exception_ptr& error);
  std::uint64_t draw();  // never 0
  TraceContext begin_trace();

  const TracerOptions options_;
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> drawn_{0};
  std::atomic<bool> installed_{false};
  AgentId id_;                  // set by the layer
  std::shared_ptr<Loop> loop_;  // set by the layer; its clock is the clock of spans

  Mutex mutex_;
  std::vector<Span> spans_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t dropped_ WEFT_GUARDED_BY(mutex_) = 0;
};

// The text for Span::error. Empty if `error` is null.
WEFT_EXPORT std::string span_error(const std::exception_ptr& error);

// The trace of a call that is being served, for the program's own log; nullopt without a tracer. Call it in
// the handler.
WEFT_EXPORT std::optional<TraceContext> trace_of(CallContext& call);

// Makes a call part of a trace that started elsewhere: peer.call<&T::f>(rpc::Under(context), x). Without a
// tracer, the trace is only propagated.
class WEFT_EXPORT Under final : public CallModifier {
 public:
  explicit Under(TraceContext context) : context_(std::move(context)) {}
  void apply(OutgoingCall& call) const override;

 private:
  TraceContext context_;
};

}  // namespace weft::rpc
