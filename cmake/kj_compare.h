// Included first by clang 16 and later with a Cap'n Proto before 1.0 (CMakeLists.txt): its <capnp/blob.h> compares
// text in a way that C++20 as corrected by P2468 refuses, in functions that weft does not call.
#pragma once

namespace kj {
class StringPtr;
bool operator==(const char*, const StringPtr&);
bool operator!=(const char*, const StringPtr&);
}  // namespace kj
