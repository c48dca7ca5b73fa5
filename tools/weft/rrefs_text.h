// What `weft rrefs` shows of an agent's objects and references. Thread-safety: none needed.
#pragma once

#include <weft/rref/listing.h>

#include <string>

namespace weft::tool {

// Lines: what there is in all, then an object a line.
std::string rrefs_text(const rref::ReferenceListing& listing);

}  // namespace weft::tool
