// Helpers of the tests of the two tables, which read the actions of an event.
#pragma once

#include <weft/rref/protocol/actions.h>

#include <utility>
#include <variant>
#include <vector>

namespace weft::rref::protocol {

template <class Kind>
std::vector<Kind> all(const Actions& actions) {
  std::vector<Kind> found;
  for (const Action& action : actions) {
    if (const auto* one = std::get_if<Kind>(&action)) found.push_back(*one);
  }
  return found;
}

template <class Kind>
std::size_t count(const Actions& actions) {
  return all<Kind>(actions).size();
}

// Runs one event and returns its actions.
template <class Event>
Actions after(Event event) {
  Actions out;
  event(out);
  return out;
}

}  // namespace weft::rref::protocol
