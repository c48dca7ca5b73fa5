#include <weft/parallel/collectives/flight/flight_dump.h>

#include <weft/rpc/core/error.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace weft::collectives {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;  // fields keep their order, because people read these files, too

constexpr auto format_name = "weft.flight";
constexpr int format_version = 1;
constexpr std::uint64_t max_begun = std::uint64_t{1} << 63;
constexpr std::int64_t latest_time = std::int64_t{1} << 62;  // so that differences of times do not overflow
constexpr std::size_t longest_name = 100;                    // of a group, in the name of its file

[[noreturn]] void refuse(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "malformed dump of a flight recorder: " + why);
}
[[noreturn]] void fail(const fs::path& path, const std::string& what) {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, path.string() + ": " + what);
}

std::string hex(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

// --- Reading ---

const Json& field(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) refuse(std::string("'") + name + "' is missing");
  return *found;
}

// A value in an error: a number, or the type of another value.
std::string shown(const Json& value) {
  return value.is_number() ? value.dump() : std::string("of type ") + value.type_name();
}

std::string text(const Json& object, const char* name) {
  const Json& value = field(object, name);
  if (!value.is_string()) refuse(std::string("'") + name + "' is " + shown(value) + ", expected a string");
  return value.get<std::string>();
}

// Numbers of JSON are checked against their range: the library would truncate them.
template <class Number>
Number integer(const Json& value, const char* name, Number least, Number most) {
  const auto within = [&](auto number) {
    return std::in_range<Number>(number) && static_cast<Number>(number) >= least &&
           static_cast<Number>(number) <= most;
  };
  if (value.is_number_unsigned() && within(value.get<std::uint64_t>()))
    return static_cast<Number>(value.get<std::uint64_t>());
  if (value.is_number_integer() && !value.is_number_unsigned() && within(value.get<std::int64_t>()))
    return static_cast<Number>(value.get<std::int64_t>());
  refuse(std::string("'") + name + "' is " + shown(value) + ", expected an integer from " +
         std::to_string(least) + " to " + std::to_string(most));
}
std::uint64_t count(const Json& object, const char* name, std::uint64_t most = ~std::uint64_t{0}) {
  return integer<std::uint64_t>(field(object, name), name, 0, most);
}
std::int64_t time(const Json& object, const char* name) {
  return integer<std::int64_t>(field(object, name), name, 0, latest_time);
}

const Json& list(const Json& object, const char* name) {
  const Json& value = field(object, name);
  if (!value.is_array()) refuse(std::string("'") + name + "' is " + shown(value) + ", expected a list");
  return value;
}

template <class Value>
Value named(const Json& object, const char* name, Value last) {
  const std::string given = text(object, name);
  std::string known;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    const std::string_view each = name_of(static_cast<Value>(i));
    if (each == given) return static_cast<Value>(i);
    known += (known.empty() ? "" : ", ") + std::string(each);
  }
  refuse(std::string("'") + name + "' is '" + given + "', expected one of " + known);
}

FlightEntry entry_of(const Json& object, int ranks, const FlightRecords& records) {
  FlightEntry entry;
  entry.kind = named(object, "kind", FlightKind::recv);
  entry.state = named(object, "state", FlightState::failed);
  entry.number = count(object, "number");
  if (!entry.is_message()) {
    const bool is_collective = entry.kind == FlightKind::collective;
    const std::uint64_t begun = is_collective ? records.begun : records.begun_values;
    if (begun == 0)
      refuse(std::string("'") + (is_collective ? "begun" : "begun_values") +
             "' is 0, expected at least 1: the dump has an entry of kind " +
             std::string(name_of(entry.kind)));
    entry.sequence = count(object, "sequence", begun - 1);
  } else {
    entry.peer = integer<int>(field(object, "peer"), "peer", -1, ranks - 1);
    entry.tag = count(object, "tag");
  }
  entry.text = text(object, "text");
  entry.site = text(object, "site");
  entry.bytes = count(object, "bytes");
  entry.begun = time(object, "begun");
  entry.moved = time(object, "moved");
  entry.ended = time(object, "ended");
  if (object.contains("error")) entry.error = text(object, "error");
  if (object.contains("waits_for"))
    for (const Json& rank : list(object, "waits_for"))
      entry.waits_for.push_back(integer<int>(rank, "waits_for", 0, ranks - 1));
  return entry;
}

// --- Writing ---

Json json_of(const FlightEntry& entry) {
  Json json = {{"number", entry.number}, {"kind", name_of(entry.kind)}, {"state", name_of(entry.state)}};
  if (!entry.is_message()) {
    json["sequence"] = entry.sequence;
  } else {
    json["peer"] = entry.peer;
    json["tag"] = entry.tag;
  }
  json["text"] = entry.text;
  json["site"] = entry.site;
  json["bytes"] = entry.bytes;
  json["begun"] = entry.begun;
  json["moved"] = entry.moved;
  json["ended"] = entry.ended;
  if (!entry.error.empty()) json["error"] = entry.error;
  if (!entry.waits_for.empty()) json["waits_for"] = entry.waits_for;
  return json;
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Distinguishes groups of one name by their ids: eight digits suffice for names of files.
std::string file_name(const FlightDump& dump) {
  std::string name = dump.group.substr(0, longest_name);
  std::replace_if(
      name.begin(), name.end(),
      [](char c) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        return !plain && c != '_' && c != '-';
      },
      '_');
  const std::uint64_t id = (dump.origin ^ dump.number * 0x9E37'79B9'7F4A'7C15) * 0x9E37'79B9'7F4A'7C15;
  return name + "." + hex(id).substr(0, 8) + ".rank" + std::to_string(dump.rank) + ".json";
}

bool looks_like_a_dump(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".json") && name.find(".rank") != std::string::npos;
}

}  // namespace

FlightDump FlightDump::here() {
  FlightDump dump;
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) dump.host = host;
  dump.pid = ::getpid();
  return dump;
}

std::string json_of(const FlightDump& dump) {
  const FlightRecords& records = dump.records;
  const Json head = {{"format", format_name},
                     {"version", format_version},
                     {"group", dump.group},
                     {"origin", hex(dump.origin)},
                     {"number", dump.number},
                     {"rank", dump.rank},
                     {"members", dump.members},
                     {"host", dump.host},
                     {"pid", dump.pid},
                     {"error", dump.error},
                     {"taken", records.taken},
                     {"begun", records.begun},
                     {"begun_values", records.begun_values},
                     {"dropped", records.dropped}};
  std::string out = dumped(head);
  out.pop_back();  // the brace
  out += ",\n\"entries\":[";
  const char* before = "\n";  // one line each
  for (const FlightEntry& entry : records.entries)
    out += std::exchange(before, ",\n") + dumped(json_of(entry));
  return out + "\n]}\n";
}

FlightDump flight_dump_of(std::string_view source) {
  const Json json = Json::parse(source, nullptr, false);
  if (json.is_discarded()) refuse("it is not JSON, or has been cut off");
  if (const std::string format = text(json, "format"); format != format_name)
    refuse("'format' is '" + format + "', expected '" + format_name + "'");
  if (const auto version = count(json, "version"); version != format_version)
    refuse("it is of version " + std::to_string(version) + ", this program reads " +
           std::to_string(format_version));
  FlightDump dump;
  dump.group = text(json, "group");
  const std::string origin = text(json, "origin");
  if (origin.size() != 16 || origin.find_first_not_of("0123456789abcdef") != std::string::npos)
    refuse("'origin' is '" + origin + "', expected 16 hexadecimal digits");
  dump.origin = std::stoull(origin, nullptr, 16);
  dump.number = count(json, "number");
  for (const Json& member : list(json, "members")) {
    if (!member.is_string()) refuse("a member is " + shown(member) + ", expected a name");
    dump.members.push_back(member.get<std::string>());
  }
  const int ranks = static_cast<int>(dump.members.size());
  dump.rank = integer<int>(field(json, "rank"), "rank", 0, ranks - 1);
  dump.host = text(json, "host");
  dump.pid = integer<std::int64_t>(field(json, "pid"), "pid", 0, latest_time);
  dump.error = text(json, "error");
  dump.records.taken = time(json, "taken");
  dump.records.begun = count(json, "begun", max_begun);
  dump.records.begun_values = count(json, "begun_values", max_begun);
  dump.records.dropped = count(json, "dropped");
  for (const Json& entry : list(json, "entries"))
    dump.records.entries.push_back(entry_of(entry, ranks, dump.records));
  return dump;
}

// Not synced: the file must outlive the process, not the host.
fs::path write_flight_dump(const fs::path& folder, const FlightDump& dump) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(folder, error.message());
  const fs::path path = folder / file_name(dump);
  const fs::path beside = path.string() + "." + std::to_string(dump.pid) + ".part";
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << json_of(dump) << std::flush;
  file.close();
  if (!file) {
    const std::string why = std::strerror(errno);
    fs::remove(beside, error);
    fail(path, "cannot be written: " + why);
  }
  fs::rename(beside, path, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(beside, error);
    fail(path, "cannot be written: " + why);
  }
  return path;
}

FlightFolder read_flight_dumps(const fs::path& folder) {
  FlightFolder read;
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (looks_like_a_dump(at->path())) files.push_back(at->path());
  if (error) fail(folder, error.message());
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string json{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    try {
      if (!file) fail(path, "cannot be read");
      read.dumps.push_back(flight_dump_of(json));
    } catch (const rpc::Error& damaged) {
      read.unreadable.push_back(path.filename().string() + ": " + damaged.what());
    }
  }
  return read;
}

}  // namespace weft::collectives
