// json_of(): the verdict on dumps of flight recorders, as the command `weft flight` prints it. Thread-safety:
// values.
#pragma once

#include <weft/parallel/collectives/flight/flight_verdict.h>

#include "tools/weft/json_text.h"

namespace weft::tool {

// {"groups": [{"group", "summary", "errors", "notes"}, ...],
//  "findings": [{"kind", "group", "sequence" or null, "round" or null, "ranks", "members", "text",
//  "details"}, ...], "notes": [...]}
PrintedJson json_of(const collectives::FlightVerdict& verdict);

}  // namespace weft::tool
