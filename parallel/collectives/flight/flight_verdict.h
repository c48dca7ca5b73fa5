// FlightVerdict: the findings about a job, from the dumps of its ranks: a pure function.
//
// For each group: the first collective on which ranks differ; the first that has not completed, with the
// ranks that have not started it and the source location of every rank; ranks without a dump; messages with
// one side only. Across groups: cycles of waits. The dumps of a job that continues are taken one after the
// other: operations in flight in them need not hang. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <optional>

namespace weft::collectives {

// One problem of a job.
struct FlightFinding {
  // What it is. For each kind: the meaning of `ranks`, and their order.
  enum class Kind : std::uint8_t {
    cycle,       // members wait for each other
    mismatch,    // ranks differ: `ranks` are the minority
    no_dump,     // of `ranks`, which may be dead
    missing,     // `ranks` have not started a collective in which others wait
    under_way,   // all have started a collective, and `ranks` have not completed it
    unreceived,  // a send, `ranks` {sender, receiver}, that has not been received
    unsent,      // a receive, `ranks` {receiver, sender or none}, of a message that was not sent
    unlike,      // a send and a receive, `ranks` {sender, receiver}, of different types
    in_transit,  // a send and a receive, likewise, of the same type
  };

  // ranks: of the group; for a cycle: empty.
  Kind kind = Kind::missing;
  std::string group;                      // its label; for a cycle: empty
  std::optional<std::uint64_t> sequence;  // of a collective, or
  std::optional<std::uint64_t> round;     // of values
  std::vector<int> ranks;
  std::vector<std::string> members;  // their names; for a cycle: of its members, in order
  std::string text;                  // one line
  std::vector<std::string> details;  // one line each
};
WEFT_EXPORT std::string_view name_of(FlightFinding::Kind kind);  // "cycle", …

// All findings, and a summary of each group.
struct FlightVerdict {
  // One group, by its label (FlightGroup::label).
  struct Group {
    std::string label;
    std::string summary;              // "4 ranks, dumps of 3"
    std::vector<std::string> errors;  // that ended the group
    std::vector<std::string> notes;   // remarks that are no findings
  };
  std::vector<Group> groups;
  std::vector<FlightFinding> findings;  // cycles first, then by group; empty: all ranks did the same
  std::vector<std::string> notes;
};

// Dumps must be those of flight_dump_of(): their numbers are within their ranges.
WEFT_EXPORT FlightVerdict flight_verdict(const std::vector<FlightDump>& dumps);
// As lines. Texts of dumps are included unchanged.
WEFT_EXPORT std::string text_of(const FlightVerdict& verdict);

}  // namespace weft::collectives
