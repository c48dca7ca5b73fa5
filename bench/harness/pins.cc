#include "bench/harness/pins.h"

#include <sched.h>

#include <cerrno>
#include <charconv>
#include <stdexcept>
#include <system_error>

namespace weft::bench {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int core(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < 0 || number >= CPU_SETSIZE)
    throw std::invalid_argument("not a core: '" + std::string(text) + "'");
  return number;
}

}  // namespace

Pins Pins::parse(std::string_view text) {
  Pins pins;
  if (text == "none") return pins;
  for (const std::string_view process : split(text, '/')) {
    auto& cores = pins.cores_.emplace_back();
    for (const std::string_view range : split(process, ',')) {
      const auto ends = split(range, '-');
      for (int i = core(ends.front()); i <= core(ends.back()); ++i) cores.push_back(i);
    }
  }
  return pins;
}

Pins Pins::one_each(const std::vector<int>& cores, std::size_t processes) {
  Pins pins;
  for (std::size_t i = 0; i < processes && !cores.empty(); ++i)
    pins.cores_.push_back({cores[i % cores.size()]});
  return pins;
}

void Pins::apply(std::size_t process) const {
  if (cores_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int i : cores_[process % cores_.size()]) CPU_SET(static_cast<std::size_t>(i), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot run on the cores " + text());
}

std::string Pins::text() const {
  if (cores_.empty()) return "none";
  std::string text;
  for (const auto& cores : cores_) {
    if (!text.empty()) text += '/';
    for (std::size_t i = 0; i < cores.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(cores[i]);
  }
  return text;
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  std::vector<int> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(static_cast<std::size_t>(i), &set)) cores.push_back(i);
  return cores;
}

}  // namespace weft::bench
