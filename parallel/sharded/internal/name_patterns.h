// Patterns for the names of modules, parameters and buffers, and the types that they select. Pure functions.
#pragma once

#include <weft/parallel/sharded/shard_options.h>
#include <weft/rpc/core/export.h>

#include <string>
#include <vector>

namespace weft::sharded {

// Whether the name matches: `*` matches any text without a dot.
bool matches(const std::string& pattern, const std::string& name);
// Whether the name, or the name of a module that contains it, matches.
bool matches_or_contains(const std::string& pattern, const std::string& name);
// The first entry that matches_or_contains() the name; null: none does.
const PrecisionOf* first_match(const std::vector<PrecisionOf>& entries, const std::string& name);
// The entries as text, to compare those of the ranks.
WEFT_EXPORT std::string to_text(const std::vector<PrecisionOf>& entries);

}  // namespace weft::sharded
