#include <weft/rpc/trace/clock_offset.h>

#include <weft/rpc/endpoint/dynamic_call.h>
#include <weft/rpc/trace/tracer.h>

#include <algorithm>

namespace weft::rpc {
namespace {

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

ClockOffset clock_offset(const std::vector<ClockSample>& samples) {
  if (samples.empty())
    throw Error(ErrorKind::invalid_argument, "clock_offset: no samples, expected at least one");
  const auto best = std::min_element(samples.begin(), samples.end(), [](const auto& a, const auto& b) {
    return a.received - a.sent < b.received - b.sent;
  });
  const std::int64_t half = (best->received - best->sent) / 2;
  return {best->other - (best->sent + half), half};
}

ClockOffset measure_clock(const Peer& peer, std::size_t rounds) {
  std::vector<ClockSample> samples;
  for (std::size_t i = 0; i < std::max<std::size_t>(rounds, 1); ++i) {
    ClockSample sample;
    sample.sent = nanoseconds_now();
    const DynamicReply reply = call_by_name(peer, clock_method, 0, nullptr).get();
    sample.received = nanoseconds_now();
    sample.other = Codec<std::int64_t>::decode(reply.result());
    samples.push_back(sample);
  }
  return clock_offset(samples);
}

}  // namespace weft::rpc
