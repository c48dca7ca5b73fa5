#include <weft/rpc/trace/chrome_trace.h>

#include <weft/rpc/endpoint/dynamic_call.h>
#include <weft/rpc/trace/tracer.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>

namespace weft::rpc {
namespace {

constexpr std::size_t served_lanes = 100'000;  // their numbers begin here, above those of the calls made

std::int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte >= 0x7f) {
      // One code point for each byte: names may contain any bytes, but JSON only UTF-8.
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// Microseconds, with nanosecond precision.
std::string micros(std::int64_t nanoseconds) {
  char text[40];
  const std::int64_t whole = std::max<std::int64_t>(nanoseconds, 0);
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(whole / 1000),
                static_cast<long long>(whole % 1000));
  return text;
}

class Drawing {
 public:
  explicit Drawing(const std::vector<AgentSpans>& agents) {
    for (const auto& agent : agents)
      for (const Span& span : agent.spans) {
        origin_ = std::min(origin_, span.begin - agent.clock.ahead);
        (span.served ? answered_ : made_).insert(span.served ? span.parent : span.id);
      }
  }

  std::string draw(const std::vector<AgentSpans>& agents) {
    for (std::size_t i = 0; i < agents.size(); ++i) draw(agents[i], i + 1);
    return "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n" + events_ + "\n]}\n";
  }

 private:
  void event(const std::string& fields) {
    if (!events_.empty()) events_ += ",\n";
    events_ += "{" + fields + "}";
  }

  void name(const char* what, const std::string& where, const std::string& text) {
    event(std::string("\"ph\":\"M\",\"name\":\"") + what + "\"," + where +
          ",\"args\":{\"name\":" + json_text(text) + "}");
  }

  void draw(const AgentSpans& agent, std::size_t number) {
    const std::string process = "\"pid\":" + std::to_string(number);
    name("process_name", process + ",\"tid\":0", agent.agent);
    for (const bool served : {false, true}) {
      std::vector<Span> spans;
      std::copy_if(agent.spans.begin(), agent.spans.end(), std::back_inserter(spans),
                   [&](const Span& span) { return (span.served || span.work) == served; });
      const auto lanes = nested_lanes_of(spans);
      std::set<std::size_t> used;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        const std::size_t lane = lanes[i] + 1 + (served ? served_lanes : 0);
        const std::string where = process + ",\"tid\":" + std::to_string(lane);
        if (used.insert(lane).second) name("thread_name", where, served ? "served" : "made");
        draw(spans[i], agent.clock, where);
      }
    }
  }

  void draw(const Span& span, const ClockOffset& clock, const std::string& where) {
    const std::int64_t begin = span.begin - clock.ahead - origin_;
    std::string fields = "\"ph\":\"X\",\"name\":" + json_text(span.name) + ",\"cat\":\"" +
                         (span.work     ? "work"
                          : span.served ? "served"
                                        : "made") +
                         "\"," + where + ",\"ts\":" + micros(begin) +
                         ",\"dur\":" + micros(span.end - span.begin) + ",\"args\":{\"trace\":\"" +
                         hex(span.trace_high) + hex(span.trace_low) + "\",\"span\":\"" + hex(span.id) + "\"";
    if (span.parent != 0) fields += ",\"parent\":\"" + hex(span.parent) + "\"";
    if (!span.peer.empty()) fields += ",\"peer\":" + json_text(span.peer);
    if (!span.error.empty()) fields += ",\"error\":" + json_text(span.error);
    for (const auto& [key, text] : span.notes) fields += "," + json_text(key) + ":" + json_text(text);
    event(fields + "}");
    // An arrow from the call made to the call served, if both spans are present.
    const std::uint64_t call = span.served ? span.parent : span.id;
    if (!made_.contains(call) || !answered_.contains(call)) return;
    event(std::string("\"ph\":\"") + (span.served ? "f\",\"bp\":\"e" : "s") +
          "\",\"name\":\"call\",\"cat\":\"call\",\"id\":\"" + hex(call) + "\"," + where +
          ",\"ts\":" + micros(begin));
  }

  std::int64_t origin_ = std::numeric_limits<std::int64_t>::max();  // the begin of the first span
  std::set<std::uint64_t> made_, answered_;  // calls with a span of the caller; of the callee
  std::string events_;
};

}  // namespace

std::vector<std::size_t> lanes_of(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size()), lanes(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return spans[a].begin < spans[b].begin; });
  using Busy = std::pair<std::int64_t, std::size_t>;  // the end time, and the lane
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free;  // the lowest first
  std::size_t all = 0;
  for (const std::size_t i : order) {
    for (; !busy.empty() && busy.top().first <= spans[i].begin; busy.pop()) free.push(busy.top().second);
    std::size_t lane = all;
    if (free.empty()) {
      ++all;
    } else {
      lane = free.top();
      free.pop();
    }
    lanes[i] = lane;
    busy.push({std::max(spans[i].end, spans[i].begin), lane});
  }
  return lanes;
}

std::vector<std::size_t> nested_lanes_of(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(spans[a].begin, -spans[a].end) < std::pair(spans[b].begin, -spans[b].end);
  });
  std::map<std::uint64_t, std::size_t> by_id;
  for (std::size_t i = 0; i < spans.size(); ++i) by_id.emplace(spans[i].id, i);

  // A parent precedes its children, except spans of zero length, which then are separate.
  constexpr auto nowhere = static_cast<std::size_t>(-1);
  std::vector<std::size_t> within(spans.size(), nowhere), roots;
  // For each span: the end of its last child so far, or its begin. Before its place in `order`, nothing fits.
  std::vector<std::int64_t> free_from(spans.size(), std::numeric_limits<std::int64_t>::max());
  for (const std::size_t i : order) {
    const Span& span = spans[i];
    const auto parent = span.work ? by_id.find(span.parent) : by_id.end();
    if (parent != by_id.end() && span.begin >= free_from[parent->second] &&
        span.end <= spans[parent->second].end) {
      within[i] = parent->second;
      free_from[parent->second] = span.end;
    } else {
      roots.push_back(i);
    }
    free_from[i] = span.begin;
  }
  std::vector<Span> alone;
  alone.reserve(roots.size());
  for (const std::size_t i : roots) alone.push_back(spans[i]);
  const auto lanes_of_roots = lanes_of(alone);
  std::vector<std::size_t> lanes(spans.size());
  for (std::size_t i = 0; i < roots.size(); ++i) lanes[roots[i]] = lanes_of_roots[i];
  for (const std::size_t i : order)
    if (within[i] != nowhere) lanes[i] = lanes[within[i]];
  return lanes;
}

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
    sample.sent = now();
    const DynamicReply reply = call_by_name(peer, clock_method, 0, nullptr).get();
    sample.received = now();
    sample.other = Codec<std::int64_t>::decode(reply.result());
    samples.push_back(sample);
  }
  return clock_offset(samples);
}

AgentSpans collect_spans(const Peer& peer) {
  AgentSpans all;
  all.clock = measure_clock(peer);
  SpanBatch batch{.left = 1};
  // A limit, because only the peer says how many are left. By default, 7 replies hold all that a tracer
  // keeps.
  for (int replies = 0; batch.left != 0 && replies < 100; ++replies) {
    const DynamicReply reply = call_by_name(peer, spans_method, 0, nullptr).get();
    batch = Codec<SpanBatch>::decode(reply.result());
    all.agent = batch.agent;
    all.incarnation = batch.incarnation;
    all.dropped += batch.dropped;
    if (batch.spans.empty()) break;
    all.spans.insert(all.spans.end(), std::make_move_iterator(batch.spans.begin()),
                     std::make_move_iterator(batch.spans.end()));
  }
  return all;
}

std::string chrome_trace(const std::vector<AgentSpans>& agents) { return Drawing(agents).draw(agents); }

}  // namespace weft::rpc
