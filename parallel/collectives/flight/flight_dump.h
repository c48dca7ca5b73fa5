// FlightDump: what one rank's flight recorder has, with whose it is: a file of JSON, one a rank and group.
//
// The file is GROUP.ID.rankR.json: groups that run side by side may have one name, so part of the group's
// id is in it. It appears whole or not at all (a temporary file, renamed), and takes the place of an earlier
// dump of the same rank. Texts that are no UTF-8 come back with those bytes replaced. Thread-safety: values.
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
  std::string error;  // that ended the group; empty: it goes on
  FlightRecords records;

  static FlightDump here();  // with this process's host and pid
};

// A version is written into it; a dump of a later one, or that makes no sense, is invalid_argument.
WEFT_EXPORT std::string json_of(const FlightDump& dump);
WEFT_EXPORT FlightDump flight_dump_of(std::string_view json);

// Makes the folder where there is none; gives the file's path. failed_precondition where it cannot be
// written.
WEFT_EXPORT std::filesystem::path write_flight_dump(const std::filesystem::path& folder,
                                                    const FlightDump& dump);

struct FlightFolder {
  std::vector<FlightDump> dumps;
  std::vector<std::string> unreadable;  // files that look like dumps, and what is wrong with them
};
// Other files are left alone. failed_precondition where the folder cannot be read.
WEFT_EXPORT FlightFolder read_flight_dumps(const std::filesystem::path& folder);

}  // namespace weft::collectives
