#include <weft/parallel/data_parallel/negotiated/internal/reduction_timeline.h>

#include <map>
#include <utility>

namespace weft::data_parallel {

void ReductionTimeline::add(const std::string& name, const Times& times, std::uint64_t bytes,
                            const std::exception_ptr& error) const {
  if (tracer_ == nullptr) return;
  const rpc::TraceContext root = tracer_->span_under(std::nullopt);
  if (!root.sampled) return;
  const std::int64_t end = now();
  const auto add_span = [&](const rpc::TraceContext& context, std::string text, std::int64_t begin,
                            std::int64_t until, std::map<std::string, std::string> notes) {
    rpc::Span span{.trace_high = root.trace_high, .trace_low = root.trace_low, .id = context.span};
    span.parent = context.span == root.span ? 0 : root.span;
    span.name = std::move(text);
    span.begin = begin;
    span.end = until;
    span.error = rpc::span_error(error);
    span.work = true;
    span.notes = std::move(notes);
    tracer_->add(std::move(span));
  };
  const bool launched = times.planned != 0;
  add_span(root, "all_reduce " + name, times.made, end, {{"bytes", std::to_string(bytes)}});
  add_span(tracer_->span_under(root), "NEGOTIATE", times.made, launched ? times.planned : end, {});
  if (!launched) return;
  add_span(tracer_->span_under(root), "FUSE", times.planned, times.fused, {});
  add_span(tracer_->span_under(root), "ALLREDUCE", times.fused, end, {});
}

}  // namespace weft::data_parallel
