// Order statistics of samples. Pure functions.
#pragma once

#include <vector>

namespace weft::bench {

// The smallest sample that at least `part` (0 to 1) of all do not exceed: nearest rank. Samples in any order,
// not empty.
double quantile(std::vector<double> samples, double part);
// The middle sample, or the mean of the middle two.
double median(std::vector<double> samples);

}  // namespace weft::bench
