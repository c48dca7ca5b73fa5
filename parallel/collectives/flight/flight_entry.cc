#include <weft/parallel/collectives/flight/flight_entry.h>

namespace weft::collectives {

std::string_view name_of(FlightKind kind) {
  switch (kind) {
    case FlightKind::collective:
      return "collective";
    case FlightKind::values:
      return "values";
    case FlightKind::send:
      return "send";
    case FlightKind::recv:
      return "recv";
  }
  return "?";
}

std::string_view name_of(FlightState state) {
  switch (state) {
    case FlightState::begun:
      return "begun";
    case FlightState::moving:
      return "moving";
    case FlightState::done:
      return "done";
    case FlightState::failed:
      return "failed";
  }
  return "?";
}

std::string FlightEntry::what() const {
  const std::string number = "#" + std::to_string(sequence) + " ";
  if (!is_message()) return (kind == FlightKind::values ? "values " : "") + number + text;
  return std::string(name_of(kind)) + "(" + text + (kind == FlightKind::send ? ", to " : ", from ") +
         (peer < 0 ? "any" : std::to_string(peer)) + (tag == 0 ? "" : ", tag " + std::to_string(tag)) + ")";
}

std::string FlightEntry::what_and_where() const { return site.empty() ? what() : what() + " at " + site; }

}  // namespace weft::collectives
