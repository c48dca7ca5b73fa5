#include <weft/rpc/trace/tracer.h>

#include <weft/rpc/core/split_mix.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::string_view own_methods = "weft.";

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

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

Span span_of(const TraceContext& context, std::uint64_t parent, std::string_view method, bool served,
             const std::string& peer, std::int64_t begin, std::int64_t end, const std::exception_ptr& error) {
  return {context.trace_high,
          context.trace_low,
          context.span,
          parent,
          std::string(method),
          served,
          peer,
          begin,
          end,
          span_error(error),
          false,
          {}};
}

}  // namespace

std::string span_error(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  return std::string(to_string(error_kind(error, ErrorKind::handler_failed)));
}

// The span of a call made, from its start to its end, including retries.
struct Tracer::MadeSpan {
  TraceContext context;  // of this span
  std::uint64_t parent = 0;
  std::int64_t begin = 0;
  std::string method, peer;
};

class Tracer::Watch final : public CallWatch {
 public:
  Watch(std::shared_ptr<Tracer> tracer, std::shared_ptr<const MadeSpan> span)
      : tracer_(std::move(tracer)), span_(std::move(span)) {}
  void ended(const std::exception_ptr& error) noexcept override {
    const MadeSpan& span = *span_;
    if (span.context.sampled)
      tracer_->add(span_of(span.context, span.parent, span.method, false, span.peer, span.begin,
                           tracer_->now(), error));
  }

 private:
  const std::shared_ptr<Tracer> tracer_;
  const std::shared_ptr<const MadeSpan> span_;
};

// The span of a call served.
struct Tracer::ServedSpan {
  TraceContext context;  // of this span
  std::uint64_t parent = 0;
  std::int64_t begin = 0;
};

Tracer::Tracer(TracerOptions options) : options_(options), seed_(draw_random()) {}

Tracer::~Tracer() = default;

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

std::int64_t Tracer::now() const { return nanoseconds(loop_->now()); }

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
  const ServedSpan* served = serving != nullptr ? serving->slots().find<ServedSpan>() : nullptr;
  auto span = std::make_shared<MadeSpan>();
  span->context = span_under(served != nullptr ? std::optional(served->context) : std::nullopt);
  span->parent = served != nullptr ? served->context.span : 0;
  span->begin = now();
  span->method = call.method();
  span->peer = peer;
  write_context(call, span->context);
  call.slots().put(span);
  return std::make_unique<Watch>(shared_from_this(), std::move(span));
}

Task<void> Tracer::accept(CallContext& call) {
  if (!traces(call.method())) co_return;
  const auto caller = context_of(call);
  auto served = std::make_shared<ServedSpan>();
  served->context = span_under(caller);
  served->parent = caller ? caller->span : 0;
  served->begin =
      nanoseconds(static_cast<const IncomingCall&>(call).accepted());  // the only subclass of CallContext
  call.slots().put(std::move(served));
}

void Tracer::answered(CallContext& call, const std::exception_ptr& error) noexcept {
  const ServedSpan* served = call.slots().find<ServedSpan>();
  if (served == nullptr || !served->context.sampled) return;
  add(span_of(served->context, served->parent, call.method(), true, call.peer().id.name, served->begin, now(),
              error));
}

std::optional<TraceContext> Tracer::context_in(const Slots& slots) {
  const ServedSpan* served = slots.find<ServedSpan>();
  return served != nullptr ? std::optional(served->context) : std::nullopt;
}

void Tracer::put_under(OutgoingCall& call, const TraceContext& context) {
  TraceContext own = context;
  if (MadeSpan* span = call.slots().find<MadeSpan>()) {
    span->parent = context.span;
    own.span = span->context.span;
    span->context = own;
  }
  write_context(call, own);
}

std::optional<TraceContext> trace_of(CallContext& call) { return Tracer::context_in(call.slots()); }

void Under::apply(OutgoingCall& call) const { Tracer::put_under(call, context_); }

}  // namespace weft::rpc
