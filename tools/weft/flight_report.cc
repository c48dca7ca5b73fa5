#include "tools/weft/flight_report.h"

#include "tools/weft/duration.h"

namespace weft::tool {

using collectives::FlightFinding;
using collectives::FlightVerdict;

PrintedJson json_of(const FlightVerdict& verdict) {
  PrintedJson groups = PrintedJson::array(), findings = PrintedJson::array();
  for (const FlightVerdict::Group& group : verdict.groups)
    groups.push_back({{"group", group.label},
                      {"summary", group.summary},
                      {"errors", group.errors},
                      {"notes", group.notes}});
  for (const FlightFinding& finding : verdict.findings)
    findings.push_back({{"kind", std::string(name_of(finding.kind))},
                        {"group", finding.group},
                        {"sequence", finding.sequence ? PrintedJson(*finding.sequence) : PrintedJson()},
                        {"round", finding.round ? PrintedJson(*finding.round) : PrintedJson()},
                        {"ranks", finding.ranks},
                        {"members", finding.members},
                        {"text", finding.text},
                        {"details", finding.details}});
  return {{"groups", std::move(groups)}, {"findings", std::move(findings)}, {"notes", verdict.notes}};
}

rpc::Future<rpc::DynamicReply> ask_flight(const rpc::Peer& peer, std::uint64_t latest) {
  return rpc::call_by_name(peer, flight_method, 1, [latest](rpc::OutgoingMessage& message) {
    rpc::Codec<std::uint64_t>::encode(message.argument(0), latest);
  });
}

std::vector<collectives::FlightDump> dumps_of(const rpc::DynamicReply& reply) {
  std::vector<collectives::FlightDump> dumps;
  for (const auto& text : rpc::Codec<std::vector<std::string>>::decode(reply.result()))
    dumps.push_back(collectives::flight_dump_of(text));
  return dumps;
}

std::vector<OpenOperation> open_operations(const std::vector<collectives::FlightDump>& dumps, double older) {
  std::vector<OpenOperation> operations;
  for (const collectives::FlightDump& dump : dumps)
    for (const collectives::FlightEntry& entry : dump.records.entries) {
      const double age = static_cast<double>(dump.records.taken - entry.begun) / 1e9;
      if (!entry.is_open() || entry.state == collectives::FlightState::failed || age < older) continue;
      OpenOperation& open = operations.emplace_back();
      open.member = dump.members.at(static_cast<std::size_t>(dump.rank));
      open.group = dump.group;
      open.what = entry.what_and_where();
      open.age = age;
      for (const int rank : entry.waits_for)
        open.waits_for.push_back(dump.members.at(static_cast<std::size_t>(rank)));
    }
  return operations;
}

PrintedJson json_of(const std::vector<OpenOperation>& operations) {
  PrintedJson json = PrintedJson::array();
  for (const OpenOperation& operation : operations)
    json.push_back({{"member", operation.member},
                    {"group", operation.group},
                    {"text", operation.what},
                    {"age", operation.age},
                    {"waits_for", operation.waits_for}});
  return json;
}

std::string text_of(const std::vector<OpenOperation>& operations) {
  std::string text;
  for (const OpenOperation& operation : operations) {
    text += operation.member + " in group " + operation.group + ": " + operation.what + ", " +
            text_of_seconds(operation.age);
    for (std::size_t i = 0; i < operation.waits_for.size(); ++i)
      text += (i == 0 ? ", waits for " : ", ") + operation.waits_for[i];
    text += "\n";
  }
  return text;
}

}  // namespace weft::tool
