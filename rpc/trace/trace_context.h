// TraceContext: the trace and the span of a call, in the format of W3C Trace Context
// (w3.org/TR/trace-context): "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".
//
// It is sent as metadata of a call. Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::rpc {

struct WEFT_EXPORT TraceContext {
  std::uint64_t trace_high = 0, trace_low = 0;  // not both 0
  std::uint64_t span = 0;                       // not 0
  bool sampled = true;
  std::string state;  // tracestate: propagated unchanged

  // nullopt if the text is malformed. From texts of later versions, parse() reads the fields of version 00.
  static std::optional<TraceContext> parse(std::string_view traceparent, std::string_view tracestate = {});
  std::string traceparent() const;
  std::string trace_text() const;  // 32 hexadecimal digits
  friend auto operator<=>(const TraceContext&, const TraceContext&) = default;
};

// The keys of the call's metadata.
inline constexpr const char* traceparent_key = "traceparent";
inline constexpr const char* tracestate_key = "tracestate";

}  // namespace weft::rpc
