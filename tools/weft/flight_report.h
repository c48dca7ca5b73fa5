// Reports on flight recorders: the verdict on dumps, as the command `weft flight` prints it, and the
// collectives in flight of running agents, for `weft hang` and `weft dash`. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_verdict.h>
#include <weft/rpc/endpoint/dynamic_call.h>

#include "tools/weft/json_text.h"

namespace weft::tool {

// {"groups": [{"group", "summary", "errors", "notes"}, ...],
//  "findings": [{"kind", "group", "sequence" or null, "round" or null, "ranks", "members", "text",
//  "details"}, ...], "notes": [...]}
PrintedJson json_of(const collectives::FlightVerdict& verdict);

// Asks an agent for the dumps of its groups, with the operations in flight and the last `latest` ones.
inline constexpr std::string_view flight_method = "weft.collectives.flight";
rpc::Future<rpc::DynamicReply> ask_flight(const rpc::Peer& peer, std::uint64_t latest);
std::vector<collectives::FlightDump> dumps_of(const rpc::DynamicReply& reply);

// An operation of a process group that a member has started and that has not completed.
struct OpenOperation {
  std::string member, group, what;     // what: with its source location
  double age = 0;                      // seconds
  std::vector<std::string> waits_for;  // members
};
// older: in seconds. Operations that have been in flight for a shorter time are omitted.
std::vector<OpenOperation> open_operations(const std::vector<collectives::FlightDump>& dumps, double older);
// [{"member", "group", "text", "age", "waits_for": [member, ...]}, ...]
PrintedJson json_of(const std::vector<OpenOperation>& operations);
// A line for each operation.
std::string text_of(const std::vector<OpenOperation>& operations);

}  // namespace weft::tool
