#include "bench/harness/statistics.h"

#include <algorithm>
#include <cmath>

namespace weft::bench {

double quantile(std::vector<double> samples, double part) {
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(part * static_cast<double>(samples.size())));
  const auto place = samples.begin() + std::clamp<std::ptrdiff_t>(rank - 1, 0, std::ssize(samples) - 1);
  std::nth_element(samples.begin(), place, samples.end());
  return *place;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  return n % 2 != 0 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}

}  // namespace weft::bench
