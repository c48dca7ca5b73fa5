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

// Takes out of `bench` the cases and peers that were not asked for. Nothing where the program is to end at
// once with `status`: help was asked for, or an option is wrong.
std::optional<Options> parse_options(int argc, char** argv, Bench& bench, int& status);

}  // namespace weft::bench
