// The output of `weft rrefs`: an agent's objects and references. Thread-safety: functions without state.
#pragma once

#include <weft/rref/listing.h>

#include <string>

namespace weft::tool {

// The lines of the output: the totals, then one line for each object.
std::string rrefs_text(const rref::ReferenceListing& listing);

}  // namespace weft::tool
