#include <weft/rpc/trace/tracer.h>

#include <weft/rpc/core/split_mix.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::string_view own_methods = "weft.";

std::int64_t count(std::chrono::nanoseconds time) { return time.count(); }

void write_context(OutgoingCall& call, const TraceContext& context) {
  call.set_metadata(traceparent_key, context.traceparent());
  if (!context.state.empty()) call.set_metadata(tracestate_key, context.state);
}

std::optional<TraceContext> context_of(CallContext& call) {
  try {
    const auto traceparent = call.metadata(traceparent_key);
    if (!traceparent) return std::nullopt;
    return TraceContext::parse(*traceparent, call.metadata(tracestate_key).value_or(""));
  } catch (const Error&) {
    return std::nullopt;  // malformed metadata
  }
}

}  // namespace

std::string span_error(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  return std::string(to_string(error_kind(error, ErrorKind::handler_failed)));
}

// A span that has not ended.
struct Tracer::OpenSpan {
  TraceContext context;  // of this span
  std::uint64_t parent = 0;
  std::int64_t begin = 0;
};

// The span of a call made, from its start to its end, including retries.
struct Tracer::MadeSpan : OpenSpan {
  std::string method, peer;
};

// The span of a call served.
struct Tracer::ServedSpan : OpenSpan {};

class Tracer::Watch final : public CallWatch {
 public:
  Watch(std::shared_ptr<Tracer> tracer, std::shared_ptr<const MadeSpan> span)
      : tracer_(std::move(tracer)), span_(std::move(span)) {}
  void ended(const std::exception_ptr& error) noexcept override {
    tracer_->end(*span_, span_->method, false, span_->peer, error);
  }

 private:
  const std::shared_ptr<Tracer> tracer_;
  const std::shared_ptr<const MadeSpan> span_;
};

Tracer::Tracer(TracerOptions options) : options_(options), seed_(draw_random()) {}

Layer Tracer::layer() {
  return [self = shared_from_this()](Agent& agent) {
    if (self->installed_.exchange(true))
      throw Error(ErrorKind::failed_precondition, "this tracer already belongs to '" + self->id_.name + "'");
    const auto& core = agent.core();
    self->id_ = core->id();
    self->loop_ = core->loops().front();
    MethodEntry spans = detail::own_method<SpanBatch>(spans_method, [self](auto&) { return self->take(); });
    spans.idempotent = spans.non_blocking = false;
    core->methods().serve(std::move(spans));
    core->methods().serve(
        detail::own_method<std::int64_t>(clock_method, [self](auto&) { return self->now(); }));
    core->hooks().add_interceptor(self);
    core->layers().put(self);
  };
}

std::uint64_t Tracer::draw() {
  const std::uint64_t number = split_mix(seed_ + (drawn_.fetch_add(1) + 1) * split_mix_step);
  return number != 0 ? number : draw();
}

std::shared_ptr<Tracer> Tracer::of(const CallHost& host) { return host.layers().share<Tracer>(); }

bool Tracer::traces(std::string_view method) const {
  return !method.starts_with(own_methods) ||
         std::find(options_.own_methods.begin(), options_.own_methods.end(), method) !=
             options_.own_methods.end();
}

std::int64_t Tracer::now() const { return count(loop_->now().time_since_epoch()); }

TraceContext Tracer::begin_trace() {
  TraceContext context{draw(), draw(), draw(), false, {}};
  // By the trace's id, as the standard's samplers do.
  context.sampled = static_cast<double>(context.trace_low >> 11) * 0x1p-53 < options_.ratio;
  return context;
}

TraceContext Tracer::span_under(const std::optional<TraceContext>& parent) {
  TraceContext context = parent ? *parent : begin_trace();
  context.span = draw();
  return context;
}

Tracer::OpenSpan Tracer::open(const std::optional<TraceContext>& parent, std::int64_t begin) {
  return {span_under(parent), parent ? parent->span : 0, begin};
}

void Tracer::end(const OpenSpan& open, std::string_view method, bool served, const std::string& peer,
                 const std::exception_ptr& error) {
  const TraceContext& context = open.context;
  if (context.sampled)
    add({context.trace_high,
         context.trace_low,
         context.span,
         open.parent,
         std::string(method),
         served,
         peer,
         open.begin,
         now(),
         span_error(error),
         false,
         {}});
}

void Tracer::add(Span span) {
  MutexLock lock(mutex_);
  if (spans_.size() < options_.max_spans) {
    spans_.push_back(std::move(span));
  } else {
    ++dropped_;
  }
}

SpanBatch Tracer::take(std::size_t max_spans) {
  SpanBatch batch{id_.name, id_.incarnation, 0, 0, {}};
  MutexLock lock(mutex_);
  const auto end = spans_.begin() + static_cast<std::ptrdiff_t>(std::min(max_spans, spans_.size()));
  batch.spans.assign(std::make_move_iterator(spans_.begin()), std::make_move_iterator(end));
  spans_.erase(spans_.begin(), end);
  batch.left = spans_.size();
  batch.dropped = std::exchange(dropped_, 0);
  return batch;
}

std::unique_ptr<CallWatch> Tracer::calling(OutgoingCall& call, const std::string& peer,
                                           CallContext* serving) {
  if (!traces(call.method())) return nullptr;
  auto span = std::make_shared<MadeSpan>(MadeSpan{
      open(serving != nullptr ? trace_of(*serving) : std::nullopt, now()), std::string(call.method()), peer});
  write_context(call, span->context);
  call.slots().put(span);
  return std::make_unique<Watch>(shared_from_this(), std::move(span));
}

Task<void> Tracer::accept(CallContext& call) {
  if (!traces(call.method())) co_return;
  // IncomingCall is the only subclass of CallContext.
  const auto accepted = static_cast<const IncomingCall&>(call).accepted();
  call.slots().put(
      std::make_shared<ServedSpan>(ServedSpan{open(context_of(call), count(accepted.time_since_epoch()))}));
}

void Tracer::answered(CallContext& call, const std::exception_ptr& error) noexcept {
  if (const ServedSpan* served = call.slots().find<ServedSpan>())
    end(*served, call.method(), true, call.peer().id.name, error);
}

std::optional<TraceContext> trace_of(CallContext& call) {
  const auto* served = call.slots().find<Tracer::ServedSpan>();
  return served != nullptr ? std::optional(served->context) : std::nullopt;
}

void Under::apply(OutgoingCall& call) const {
  TraceContext own = context_;
  if (auto* span = call.slots().find<Tracer::MadeSpan>()) {
    span->parent = context_.span;
    own.span = span->context.span;
    span->context = own;
  }
  write_context(call, own);
}

}  // namespace weft::rpc
