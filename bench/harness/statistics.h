// Order statistics of samples. Pure functions.
#pragma once

#include <vector>

namespace weft::bench {

// The smallest sample that is not exceeded by at least `part` (0 to 1) of all samples (nearest rank).
// samples: in any order, not empty.
double quantile(std::vector<double> samples, double part);
// The middle sample, or the mean of the middle two.
double median(std::vector<double> samples);

}  // namespace weft::bench
