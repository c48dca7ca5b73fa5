// The command line that all benches share.
#pragma once

#include "bench/harness/bench.h"

#include <optional>

namespace weft::bench {

struct Options {
  int rounds = 7;
  Setting setting;
  std::string json, svg;  // files; empty: none
};

// Removes from `bench` the cases and peers that were not requested. Returns nothing if the program must exit
// at once with `status`: help was requested, or an option is invalid.
std::optional<Options> parse_options(int argc, char** argv, Bench& bench, int& status);

}  // namespace weft::bench
