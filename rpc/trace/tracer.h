// Tracer: notes the calls that one agent makes and serves as spans, and has their trace travel with them.
//
//   auto tracer = std::make_shared<rpc::Tracer>();
//   rpc::Agent agent{{.name = "market"}, {tracer->layer()}};
//
// A call that is made in the name of another (peer.with(call)) is in its trace; any other begins one, unless
// Under says which it belongs to. Whether a trace is noted is decided where it begins, by `ratio`, and kept
// everywhere. Calls of weft's own methods ("weft.") are traced where TracerOptions says so. Spans are kept
// until they are taken, here by take() or by a peer through `weft.spans`, and new ones are dropped while
// there is no room. Layers above note more: tensor/operator_trace.h the operators of handlers. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/agent/interceptor.h>
#include <weft/rpc/trace/span.h>
#include <weft/rpc/trace/trace_context.h>

#include <atomic>
#include <mutex>
#include <optional>

namespace weft::rpc {

// The methods that a tracer serves.
inline constexpr std::string_view spans_method = "weft.spans", clock_method = "weft.clock";

struct TracerOptions {
  double ratio = 1;               // of the traces that begin here: 0 none, 1 all
  std::size_t max_spans = 65536;  // that are kept
  // Of weft's own methods those that are traced as others are, by their names:
  // dist_autograd::backward_methods()
  std::vector<std::string> own_methods = {};
};

class WEFT_EXPORT Tracer final : public Interceptor, public std::enable_shared_from_this<Tracer> {
 public:
  explicit Tracer(TracerOptions options = {});
  ~Tracer() override;

  // What installs it into the one agent that it is of; serves `weft.spans` and `weft.clock` there. Once;
  // failed_precondition the second time.
  Layer layer();

  SpanBatch take(std::size_t most = 10'000);

  // For layers above, which note what they do as work.
  static std::shared_ptr<Tracer> of(AgentCore& core);  // null: that agent has none
  bool traces(std::string_view method) const;
  TraceContext span_under(const std::optional<TraceContext>& parent);  // a new span there, or in a new trace
  std::int64_t now() const;                                            // of Span's clock; once installed
  void add(Span span);

  // For trace_of and Under.
  static std::optional<TraceContext> context_in(const Slots& slots);
  static void put_under(OutgoingCall& call, const TraceContext& context);

  Task<void> accept(CallContext& call) override;
  void answered(CallContext& call, const std::exception_ptr& error) noexcept override;
  std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string& peer,
                                     CallContext* serving) override;

 private:
  struct MadeSpan;
  class Watch;
  struct ServedSpan;

  std::uint64_t draw();  // never 0
  TraceContext begin_trace();

  const TracerOptions options_;
  const std::uint64_t seed_;
  std::atomic<std::uint64_t> drawn_{0};
  std::atomic<bool> installed_{false};
  AgentId id_;                  // set by the layer
  std::shared_ptr<Loop> loop_;  // likewise; for its clock

  std::mutex mutex_;  // guards what follows
  std::vector<Span> spans_;
  std::uint64_t dropped_ = 0;
};

// What Span::error says of it; empty for null.
WEFT_EXPORT std::string span_error(const std::exception_ptr& error);

// The trace that a call which is being served belongs to, for the program's own log; nothing where there is
// no tracer. In the handler.
WEFT_EXPORT std::optional<TraceContext> trace_of(CallContext& call);

// Makes a call part of a trace that began elsewhere: peer.call<&T::f>(rpc::Under(context), x). Also without a
// tracer, which then only hands it on.
class WEFT_EXPORT Under final : public CallModifier {
 public:
  explicit Under(TraceContext context) : context_(std::move(context)) {}
  void apply(OutgoingCall& call) const override;

 private:
  TraceContext context_;
};

}  // namespace weft::rpc
