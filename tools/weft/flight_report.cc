#include "tools/weft/flight_report.h"

namespace weft::tool {

using collectives::FlightFinding;
using collectives::FlightVerdict;

PrintedJson json_of(const FlightVerdict& verdict) {
  PrintedJson groups = PrintedJson::array(), findings = PrintedJson::array();
  for (const FlightVerdict::Group& group : verdict.groups) {
    PrintedJson one;
    add_field(one, "group", group.label);
    add_field(one, "summary", group.summary);
    add_field(one, "errors", group.errors);
    add_field(one, "notes", group.notes);
    groups.push_back(std::move(one));
  }
  for (const FlightFinding& finding : verdict.findings) {
    PrintedJson one;
    add_field(one, "kind", std::string(name_of(finding.kind)));
    add_field(one, "group", finding.group);
    add_field(one, "sequence", finding.sequence ? PrintedJson(*finding.sequence) : PrintedJson());
    add_field(one, "round", finding.round ? PrintedJson(*finding.round) : PrintedJson());
    add_field(one, "ranks", finding.ranks);
    add_field(one, "members", finding.members);
    add_field(one, "text", finding.text);
    add_field(one, "details", finding.details);
    findings.push_back(std::move(one));
  }
  PrintedJson json;
  add_field(json, "groups", std::move(groups));
  add_field(json, "findings", std::move(findings));
  add_field(json, "notes", verdict.notes);
  return json;
}

}  // namespace weft::tool
