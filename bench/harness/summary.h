// Summary: reduces the rows of a run to one entry for each case and peer. A pure function.
//
// Figures are medians over rounds. A ratio is the subject's figure divided by the peer's figure in the same
// round. The summary keeps the median and the worst ratio over rounds. The worst ratio is that of the round
// in which the subject has the highest time or the lowest rate relative to the peer.
#pragma once

#include "bench/harness/row.h"

#include <optional>
#include <vector>

namespace weft::bench {

struct Ratio {
  double median, worst;
};

struct Entry {
  std::string case_name, peer;
  Figures medians;
  std::map<std::string, Ratio> ratios;  // the ratios of the figures that both have; empty for the subject
  int measured = 0, rounds = 0;
  std::string error;  // the error of the last round that failed
};

// The entries are in the order in which cases and peers first appear.
std::vector<Entry> summarise(const std::vector<Row>& rows, const std::string& subject);

}  // namespace weft::bench
