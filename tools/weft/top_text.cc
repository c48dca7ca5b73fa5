#include "tools/weft/top_text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <vector>

#include "tools/weft/bytes.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

unsigned long long number(std::uint64_t n) { return n; }

struct Row {
  std::string name;
  double calls = 0, failed = 0;  // a second
  std::uint64_t in_progress = 0, all = 0;
};

// The growth of a counter per second. If a counter has shrunk, its growth is 0.
class Rate {
 public:
  explicit Rate(double seconds) : seconds_(seconds) {}
  double operator()(std::uint64_t before, std::uint64_t now) const {
    return seconds_ > 0 && now > before ? static_cast<double>(now - before) / seconds_ : 0;
  }

 private:
  double seconds_;
};

std::vector<Row> rows(const rpc::AgentStats& before, const rpc::AgentStats& now, const Rate& rate) {
  std::map<std::string, const rpc::MethodStats*> known;
  for (const auto& method : before.methods) known[method.name] = &method;
  std::vector<Row> rows;
  for (const auto& method : now.methods) {
    if (method.accepted == 0) continue;
    const auto found = known.find(method.name);
    const rpc::MethodStats old = found == known.end() ? rpc::MethodStats{} : *found->second;
    rows.push_back({method.name, rate(old.accepted, method.accepted), rate(old.failed, method.failed),
                    method.accepted - std::min(method.answered, method.accepted), method.accepted});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::tie(a.calls, a.in_progress, a.all) > std::tie(b.calls, b.in_progress, b.all);
  });
  return rows;
}

// The figures that are not zero: "rref.forks 2, rref.objects 1".
std::string layers_text(const rpc::LayerStats& figures) {
  std::string text;
  for (const auto& [name, figure] : figures)
    if (figure != 0)
      text += (text.empty() ? "" : ", ") + printable(name) + formatted(" %llu", number(figure));
  return text;
}

// "loss 0.31, rate 0.001".
std::string gauges_text(const std::map<std::string, double>& gauges) {
  std::string text;
  for (const auto& [name, value] : gauges)
    text += (text.empty() ? "" : ", ") + printable(name) + formatted(" %.4g", value);
  return text;
}

}  // namespace

std::string top_text(const rpc::AgentStats& before, const rpc::AgentStats& now, std::size_t width,
                     std::size_t lines) {
  const Rate rate(now.uptime - before.uptime);
  std::vector<std::string> text;
  text.push_back(printable(now.name) + formatted("  up %s  %llu connections, %llu made, %llu refused",
                                                 text_of_seconds(now.uptime).c_str(), number(now.connections),
                                                 number(now.connections_made),
                                                 number(now.connections_refused)));
  text.push_back(formatted("served   %10.1f/s  %6llu in flight  %llu denied, %llu shed",
                           rate(before.calls_served, now.calls_served), number(now.serving),
                           number(now.calls_denied), number(now.calls_shed)));
  text.push_back(formatted("made     %10.1f/s  %6llu in flight", rate(before.calls_made, now.calls_made),
                           number(now.waiting)));
  std::string bytes = "bytes    " + bytes_text(rate(before.bytes_received, now.bytes_received)) + "/s in, " +
                      bytes_text(rate(before.bytes_sent, now.bytes_sent)) + "/s out";
  if (const double asked = static_cast<double>(now.pool_hits) + static_cast<double>(now.pool_misses);
      asked > 0)
    bytes += formatted("; pool: %.0f %% hits, ", 100 * static_cast<double>(now.pool_hits) / asked) +
             bytes_text(static_cast<double>(now.pool_bytes)) + " kept";
  text.push_back(bytes);
  if (const std::string layers = layers_text(now.layers); !layers.empty())
    text.push_back("layers   " + layers);
  if (const std::string gauges = gauges_text(now.gauges); !gauges.empty())
    text.push_back("gauges   " + gauges);
  text.emplace_back();
  text.push_back(formatted("%10s %9s %9s %12s  METHOD", "CALLS/s", "FAILED/s", "IN FLIGHT", "CALLS"));
  const std::vector<Row> all = rows(before, now, rate);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (lines != 0 && text.size() + 2 >= std::max<std::size_t>(lines, 8) && i + 1 < all.size()) {
      text.push_back(formatted("%zu more", all.size() - i));
      break;
    }
    text.push_back(formatted("%10.1f %9.1f %9llu %12llu  ", all[i].calls, all[i].failed,
                             number(all[i].in_progress), number(all[i].all)) +
                   printable(all[i].name));
  }
  std::string joined;
  for (std::string& line : text) joined += (line.size() > width ? line.substr(0, width) : line) + "\n";
  return joined;
}

}  // namespace weft::tool
