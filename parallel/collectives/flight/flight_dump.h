// FlightDump: the contents of one rank's flight recorder, with the rank and the group. There is one JSON file
// for each rank of each group.
//
// The file is named GROUP.ID.rankR.json. Concurrent groups may have the same name, so the file's name
// includes a part of the group's id. The file is written to a temporary file and renamed, so that it is
// complete or does not exist; it replaces an earlier dump of the same rank. Bytes of a text that are not
// UTF-8 are replaced. Thread-safety: values.
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
  std::string error;  // the error that ended the group; empty: the group is usable
  FlightRecords records;

  static FlightDump here();  // with this process's host and pid
};

// Convert a dump to JSON and back. The JSON contains a version: flight_dump_of() throws invalid_argument if
// the version is later than this code's, or if the JSON is malformed.
WEFT_EXPORT std::string json_of(const FlightDump& dump);
WEFT_EXPORT FlightDump flight_dump_of(std::string_view json);

// Creates the folder if it does not exist; returns the file's path. failed_precondition: the file cannot be
// written.
WEFT_EXPORT std::filesystem::path write_flight_dump(const std::filesystem::path& folder,
                                                    const FlightDump& dump);

// The dumps in a folder, in the order of their files' names.
struct FlightFolder {
  std::vector<FlightDump> dumps;
  std::vector<std::string> unreadable;  // files that look like dumps, with their errors
};
// Reads the dumps of a folder and ignores its other files. failed_precondition: the folder cannot be read.
WEFT_EXPORT FlightFolder read_flight_dumps(const std::filesystem::path& folder);

}  // namespace weft::collectives
