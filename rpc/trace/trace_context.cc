#include <weft/rpc/trace/trace_context.h>

#include <charconv>
#include <cstdio>

namespace weft::rpc {
namespace {

constexpr std::size_t length = 55;          // of version 00
constexpr std::size_t longest_state = 512;  // the length that the standard requires to propagate

// Lower-case digits only, as the standard requires.
std::optional<std::uint64_t> hex(std::string_view text) {
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

}  // namespace

std::optional<TraceContext> TraceContext::parse(std::string_view traceparent, std::string_view tracestate) {
  if (traceparent.size() < length || traceparent[2] != '-' || traceparent[35] != '-' ||
      traceparent[52] != '-')
    return std::nullopt;
  const auto version = hex(traceparent.substr(0, 2)), flags = hex(traceparent.substr(53, 2));
  const auto high = hex(traceparent.substr(3, 16)), low = hex(traceparent.substr(19, 16));
  const auto span = hex(traceparent.substr(36, 16));
  if (!version || !flags || !high || !low || !span || *version == 0xff) return std::nullopt;
  if (traceparent.size() > length && (*version == 0 || traceparent[length] != '-')) return std::nullopt;
  if ((*high == 0 && *low == 0) || *span == 0) return std::nullopt;
  TraceContext context{*high, *low, *span, (*flags & 1) != 0, {}};
  if (tracestate.size() <= longest_state) context.state = tracestate;
  return context;
}

std::string TraceContext::trace_text() const {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(trace_high),
                static_cast<unsigned long long>(trace_low));
  return text;
}

std::string TraceContext::traceparent() const {
  char text[32];
  std::snprintf(text, sizeof text, "-%016llx-%02x", static_cast<unsigned long long>(span), sampled ? 1U : 0U);
  return "00-" + trace_text() + text;
}

}  // namespace weft::rpc
