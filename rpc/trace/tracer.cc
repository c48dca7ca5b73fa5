#include <weft/rpc/trace/tracer.h>

#include <algorithm>
#include <random>

namespace weft::rpc {
namespace {

constexpr std::string_view own_methods = "weft.";

// SplitMix64: consecutive numbers become independent ones.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

void write_context(OutgoingMessage& message, const TraceContext& context) {
  Codec<TraceSection>::encode(message.section(trace_section, false),
                              TraceSection{context.traceparent(), context.state});
}

std::optional<TraceContext> context_of(IncomingMessage& message) {
  if (!message.has_sections()) return std::nullopt;
  try {
    const auto section = message.section(trace_section);
    if (!section) return std::nullopt;
    const auto found = Codec<TraceSection>::decode(*section);
    return TraceContext::parse(found.traceparent, found.tracestate);
  } catch (const Error&) {
    return std::nullopt;  // of another kind: not ours
  }
}

std::string kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return std::string(to_string(known.kind()));
  } catch (...) {
    return std::string(to_string(ErrorKind::internal));
  }
}

MethodEntry entry_of(std::string_view name) {
  MethodEntry entry;
  entry.name = name;
  entry.id = name_hash(name);
  return entry;
}

template <class Value, class Make>
MethodEntry own_method(std::string_view name, bool idempotent, bool non_blocking, Make make) {
  MethodEntry entry = entry_of(name);
  entry.signature = detail::HandlerTraits<Value (*)()>::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.result = type_text<Value>();
  entry.idempotent = idempotent;
  entry.non_blocking = non_blocking;
  entry.run = [make](std::shared_ptr<IncomingCall> call) {
    call->reply([&](ValueWriter writer) { Codec<Value>::encode(writer, make()); });
  };
  return entry;
}

// Hands a context on, of which nothing is noted here.
class HandedOn final : public CallPart {
 public:
  explicit HandedOn(TraceContext context) : context_(std::move(context)) {}
  void write(OutgoingMessage& message) override { write_context(message, context_); }

 private:
  const TraceContext context_;
};

}  // namespace

// The span of a call that is made. From its making to its end; part of it.
class Tracer::MadePart final : public CallPart {
 public:
  MadePart(std::shared_ptr<Tracer> tracer, TraceContext parent, bool root, std::string_view method,
           std::string peer)
      : tracer_(std::move(tracer)),
        id_(tracer_->draw()),
        begin_(tracer_->now()),
        method_(method),
        peer_(std::move(peer)) {
    put_under(std::move(parent), root);
  }
  void put_under(TraceContext parent, bool root) {
    parent_ = root ? 0 : parent.span;
    context_ = std::move(parent);
    context_.span = id_;
  }
  void write(OutgoingMessage& message) override { write_context(message, context_); }
  void ended(const std::exception_ptr& error) override {
    if (!context_.sampled) return;
    tracer_->add({context_.trace_high, context_.trace_low, id_, parent_, method_, false, peer_, begin_,
                  tracer_->now(), error != nullptr ? kind_of(error) : ""});
  }

 private:
  const std::shared_ptr<Tracer> tracer_;
  const std::uint64_t id_;
  const std::int64_t begin_;
  const std::string method_, peer_;
  std::uint64_t parent_ = 0;
  TraceContext context_;
};

// That of a call that is served.
struct Tracer::ServedSpan {
  TraceContext context;  // its own
  std::uint64_t parent = 0;
  std::int64_t begin = 0;
};

Tracer::Tracer(TracerOptions options)
    : options_(options), seed_(std::uint64_t{std::random_device{}()} << 32 | std::random_device{}()) {}

Tracer::~Tracer() = default;

Layer Tracer::layer() {
  return [self = shared_from_this()](Agent& agent) {
    if (self->installed_.exchange(true))
      throw Error(ErrorKind::failed_precondition, "this tracer is that of '" + self->id_.name + "'");
    const auto core = agent.core();
    self->id_ = core->id();
    self->loop_ = core->loops().front();
    core->serve(own_method<SpanBatch>(spans_method, false, false, [self] { return self->take(); }));
    core->serve(own_method<std::int64_t>(clock_method, true, true, [self] { return self->now(); }));
    core->add_observer(self);
  };
}

std::uint64_t Tracer::draw() {
  const std::uint64_t number = mixed(seed_ + (drawn_.fetch_add(1) + 1) * 0x9e3779b97f4a7c15ULL);
  return number != 0 ? number : draw();
}

std::int64_t Tracer::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(loop_->now().time_since_epoch()).count();
}

TraceContext Tracer::begin_trace() {
  TraceContext context{draw(), draw(), draw(), false, {}};
  // As the standard's samplers do it, by the trace's id.
  context.sampled = static_cast<double>(context.trace_low >> 11) * 0x1p-53 < options_.ratio;
  return context;
}

void Tracer::add(Span span) {
  std::lock_guard lock(mutex_);
  if (spans_.size() < options_.most_spans) {
    spans_.push_back(std::move(span));
  } else {
    ++dropped_;
  }
}

SpanBatch Tracer::take(std::size_t most) {
  SpanBatch batch{id_.name, id_.incarnation, 0, 0, {}};
  std::lock_guard lock(mutex_);
  const auto end = spans_.begin() + static_cast<std::ptrdiff_t>(std::min(most, spans_.size()));
  batch.spans.assign(std::make_move_iterator(spans_.begin()), std::make_move_iterator(end));
  spans_.erase(spans_.begin(), end);
  batch.left = spans_.size();
  batch.dropped = std::exchange(dropped_, 0);
  return batch;
}

void Tracer::making(OutgoingCall& call, CallContext* parent) {
  if (call.method().starts_with(own_methods)) return;
  const ServedSpan* served = parent != nullptr ? parent->slots().find<ServedSpan>() : nullptr;
  const auto& to = call.message().destination();
  auto part =
      std::make_shared<MadePart>(shared_from_this(), served != nullptr ? served->context : begin_trace(),
                                 served == nullptr, call.method(), to != nullptr ? to->name : "");
  call.slots().put(part);
  call.add_part(std::move(part));
}

void Tracer::accepted(IncomingCall& call) {
  if (call.method().starts_with(own_methods)) return;
  const auto caller = context_of(call.message());
  auto served = std::make_shared<ServedSpan>();
  served->context = caller ? *caller : begin_trace();
  served->parent = caller ? caller->span : 0;
  served->context.span = draw();
  served->begin = now();
  call.slots().put(std::move(served));
}

void Tracer::answered(IncomingCall& call, std::chrono::nanoseconds, std::optional<ErrorKind> error) {
  const ServedSpan* served = call.slots().find<ServedSpan>();
  if (served == nullptr || !served->context.sampled) return;
  add({served->context.trace_high, served->context.trace_low, served->context.span, served->parent,
       std::string(call.method()), true, call.peer().id.name, served->begin, now(),
       error ? std::string(to_string(*error)) : ""});
}

std::optional<TraceContext> Tracer::context_in(const Slots& slots) {
  const ServedSpan* served = slots.find<ServedSpan>();
  return served != nullptr ? std::optional(served->context) : std::nullopt;
}

bool Tracer::put_under(OutgoingCall& call, const TraceContext& context) {
  MadePart* part = call.slots().find<MadePart>();
  if (part != nullptr) part->put_under(context, false);
  return part != nullptr;
}

std::optional<TraceContext> trace_of(CallContext& call) { return Tracer::context_in(call.slots()); }

void Under::apply(OutgoingCall& call) const {
  if (!Tracer::put_under(call, context_)) call.add_part(std::make_shared<HandedOn>(context_));
}

}  // namespace weft::rpc
