// The text form of a profile: the graph.txt of PipeDream's profiler, so that weft reads PipeDream's profiles
// and PipeDream reads weft's profiles.
//
//   node1 -- Input -- FIGURES
//   node2 -- Linear(4, 4) -- FIGURES -- stage_id=0
//           node1 -- node2
//
// A line that does not begin with white space is a layer: name, description, figures, and optionally its
// stage. FIGURES is "forward_compute_time=1.250, backward_compute_time=2.500, activation_size=64.000,
// parameter_size=80.000". Times are milliseconds, sizes bytes. If an activation size is a list, such as
// `[4.0; 8.0]`, the sum of the list counts. A line that begins with white space is an edge. Empty lines are
// skipped; repeated edges count once.
#pragma once

#include <weft/parallel/partition/profile.h>

#include <string>
#include <string_view>

namespace weft::partition {

// source: the name of the text in errors, such as a file's name. invalid_argument: a line that has another
// form (the error gives the line's number, the text found and the text expected), or a profile that
// topological_order() rejects.
WEFT_EXPORT Profile parse_profile(std::string_view text, std::string_view source = "profile");

// The inverse: parse_profile(to_text(profile)) == profile, if names and descriptions contain no " -- " and no
// white space at their ends, and no edge is repeated. Line breaks of descriptions are left out. Figures have
// three decimals as in PipeDream's files, or more if they need them.
WEFT_EXPORT std::string to_text(const Profile& profile);

}  // namespace weft::partition
