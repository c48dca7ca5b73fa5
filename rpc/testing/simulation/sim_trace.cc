#include <weft/rpc/testing/simulation/sim_trace.h>

#include <cstdio>
#include <utility>

namespace weft::test {

void SimTrace::add(rpc::Clock::time_point at, const char* what, std::string_view who, std::uint64_t a,
                   std::uint64_t b) {
  mix(static_cast<std::uint64_t>(at.time_since_epoch().count()));
  mix(std::string_view(what));
  mix(who);
  mix(a);
  mix(b);
  keep({at, what, who, a, b, {}});
}

void SimTrace::note(rpc::Clock::time_point at, std::string text) {
  mix(static_cast<std::uint64_t>(at.time_since_epoch().count()));
  mix(std::string_view(text));
  keep({at, "", {}, 0, 0, std::move(text)});
}

void SimTrace::mix(std::string_view text) {
  for (const char c : text) mix(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
  mix(std::uint64_t{0x100});  // a separator: "ab" and "c" differ from "a" and "bc"
}

void SimTrace::keep(Event event) {
  ++size_;
  if (live_) std::fprintf(stderr, "%s\n", line(event).c_str());
  if (keep_ == 0) return;
  if (events_.size() == keep_) events_.pop_front();
  events_.push_back(std::move(event));
}

std::string SimTrace::line(const Event& event) {
  const auto nanoseconds = event.at.time_since_epoch().count();
  char time[32];
  std::snprintf(time, sizeof time, "%10lld.%03d us  ", static_cast<long long>(nanoseconds / 1000),
                static_cast<int>(nanoseconds % 1000));
  std::string text = time;
  if (!event.note.empty()) return text + event.note;
  text += event.what;
  if (!event.who.empty()) text.append(" ").append(event.who);
  if (event.a != 0 || event.b != 0) text.append(" ").append(std::to_string(event.a));
  if (event.b != 0) text.append(" ").append(std::to_string(event.b));
  return text;
}

std::string SimTrace::tail() const {
  std::string text;
  if (events_.size() < size_) text = "(" + std::to_string(size_ - events_.size()) + " events before these)\n";
  for (const Event& event : events_) text += line(event) + "\n";
  return text;
}

}  // namespace weft::test
