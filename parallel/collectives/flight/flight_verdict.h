// FlightVerdict: what is wrong with a job, from the dumps of its ranks: a pure function.
//
// Of each group the first collective that ranks mean differently, and the first that is not done: who has not
// begun it, and where in the program everybody is; ranks without a dump; messages with one side only; across
// groups, who waits for each other in a cycle. Dumps of a job that goes on are taken one after the other:
// what is under way in them need not hang. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <optional>

namespace weft::collectives {

struct FlightFinding {
  enum class Kind : std::uint8_t {
    cycle,       // members wait for each other
    mismatch,    // ranks do not mean the same: `ranks` are those fewer ones who differ
    no_dump,     // of `ranks`: dead, perhaps
    missing,     // `ranks` have not begun a collective that others are in
    under_way,   // all have begun a collective, and `ranks` are not done
    unreceived,  // a send, `ranks` {sender, receiver}, that is not received
    unsent,      // a receive, `ranks` {receiver, sender or none}, of what is not sent
    unlike,      // a send and a receive, `ranks` {sender, receiver}, of different things
    in_transit,  // a send and a receive, likewise, of the same
  };
  Kind kind = Kind::missing;
  std::string group;                      // its label; of a cycle: empty
  std::optional<std::uint64_t> sequence;  // of a collective; or
  std::optional<std::uint64_t> round;     // of values
  std::vector<int> ranks;
  std::vector<std::string> members;  // their names
  std::string text;                  // one line
  std::vector<std::string> details;  // a line each
};
WEFT_EXPORT std::string_view name_of(FlightFinding::Kind kind);  // "cycle", …

struct FlightVerdict {
  struct Group {
    std::string label;
    std::string summary;              // "4 ranks, dumps of 3"
    std::vector<std::string> errors;  // that ended it
    std::vector<std::string> notes;   // what is no finding by itself
  };
  std::vector<Group> groups;
  std::vector<FlightFinding> findings;  // cycles first, then by group; none: all ranks did the same
  std::vector<std::string> notes;
};

// Dumps as flight_dump_of() gives them: their numbers are within their ranges.
WEFT_EXPORT FlightVerdict flight_verdict(const std::vector<FlightDump>& dumps);
// As lines. Texts of dumps stand in it as they are.
WEFT_EXPORT std::string text_of(const FlightVerdict& verdict);

}  // namespace weft::collectives
