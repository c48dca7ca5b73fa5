#include <weft/parallel/collectives/flight/flight_entry.h>

#include <iterator>

namespace weft::collectives {

std::string_view name_of(FlightKind kind) {
  static constexpr std::string_view names[] = {"collective", "values", "send", "recv"};
  static_assert(std::size(names) == static_cast<std::size_t>(FlightKind::recv) + 1);
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name_of(FlightState state) {
  static constexpr std::string_view names[] = {"begun", "moving", "done", "failed"};
  static_assert(std::size(names) == static_cast<std::size_t>(FlightState::failed) + 1);
  return names[static_cast<std::size_t>(state)];
}

std::string FlightEntry::what() const {
  const std::string number = "#" + std::to_string(sequence) + " ";
  if (!is_message()) return (kind == FlightKind::values ? "values " : "") + number + text;
  return std::string(name_of(kind)) + "(" + text + (kind == FlightKind::send ? ", to " : ", from ") +
         (peer < 0 ? "any" : std::to_string(peer)) + (tag == 0 ? "" : ", tag " + std::to_string(tag)) + ")";
}

std::string FlightEntry::what_and_where() const { return site.empty() ? what() : what() + " at " + site; }

}  // namespace weft::collectives
