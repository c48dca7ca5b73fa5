// FlightDump: the contents of one rank's flight recorder, with its rank and group: a JSON file for each rank
// and group.
//
// The file is GROUP.ID.rankR.json: concurrent groups may have one name, so the name includes a part of the
// group's id. It appears completely or not at all (a temporary file, renamed), and replaces an earlier dump
// of the same rank. Texts that are not UTF-8 are read back with those bytes replaced. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_recorder.h>

#include <filesystem>

namespace weft::collectives {

struct WEFT_EXPORT FlightDump {
  std::uint64_t origin = 0, number = 0;  // the group's id
  std::string group;
  int rank = 0;
  std::vector<std::string> members;  // names, by rank
  std::string host;
  std::int64_t pid = 0;
  std::string error;  // that ended the group; empty: it is usable
  FlightRecords records;

  static FlightDump here();  // with this process's host and pid
};

// It contains a version; a dump of a later version, or a malformed one, is invalid_argument.
WEFT_EXPORT std::string json_of(const FlightDump& dump);
WEFT_EXPORT FlightDump flight_dump_of(std::string_view json);

// Creates the folder if it does not exist; returns the file's path. failed_precondition if it cannot be
// written.
WEFT_EXPORT std::filesystem::path write_flight_dump(const std::filesystem::path& folder,
                                                    const FlightDump& dump);

// The dumps in a folder, in the order of their files' names.
struct FlightFolder {
  std::vector<FlightDump> dumps;
  std::vector<std::string> unreadable;  // files that look like dumps, with their errors
};
// Other files are ignored. failed_precondition if the folder cannot be read.
WEFT_EXPORT FlightFolder read_flight_dumps(const std::filesystem::path& folder);

}  // namespace weft::collectives
