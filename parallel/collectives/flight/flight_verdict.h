// FlightVerdict: the findings about a job. A pure function derives them from the dumps of the job's ranks.
//
// For each group, the verdict has the first collective on which ranks differ, the first collective that has
// not completed, the ranks without a dump, and the messages with one side only. For the collective that has
// not completed, the verdict lists the ranks that have not started it, and the source location at which each
// rank with a dump is. Across groups, it has the cycles of waits. If the job continues while its dumps are
// taken, operations that the dumps show in flight do not necessarily hang. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <optional>

namespace weft::collectives {

// One problem of a job.
struct FlightFinding {
  // The kind of the problem. The comments state the meaning and order of `ranks`.
  enum class Kind : std::uint8_t {
    cycle,        // members wait for each other
    mismatch,     // ranks call different operations: `ranks` are the minority
    no_dump,      // `ranks` have no dump; they may be dead
    missing,      // `ranks` have not started a collective in which other ranks wait
    in_progress,  // all have started a collective, and `ranks` have not completed it
    unreceived,   // a send, `ranks` {sender, receiver}, that has not been received
    unsent,       // a receive, `ranks` {receiver, sender or none}, of a message that was not sent
    unlike,       // a send and a receive, `ranks` {sender, receiver}, of different types
    in_transit,   // a send and a receive, `ranks` {sender, receiver}, of the same type
  };

  // For a cycle, `group` and `ranks` are empty. For all other kinds, `ranks` are ranks of the group.
  Kind kind = Kind::missing;
  std::string group;                      // the group's label
  std::optional<std::uint64_t> sequence;  // the number of a collective
  std::optional<std::uint64_t> round;     // the number of a round of values
  std::vector<int> ranks;
  std::vector<std::string> members;  // the names of `ranks`; for a cycle, the names of its members, in order
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
  std::vector<FlightFinding> findings;  // cycles first, then by group; empty: no problem was found
  std::vector<std::string> notes;
};

// dumps: results of flight_dump_of(), which refuses numbers out of range.
WEFT_EXPORT FlightVerdict flight_verdict(const std::vector<FlightDump>& dumps);
// The verdict as lines of text. Texts of the dumps (names, errors, locations) are not escaped.
WEFT_EXPORT std::string text_of(const FlightVerdict& verdict);

}  // namespace weft::collectives
