// The learning rate of a run. It rises to the highest rate in the first twentieth of the steps, then falls
// along a cosine to a tenth of the highest rate.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

inline double cosine_rate(std::int64_t step, std::int64_t steps, double highest) {
  const double done = static_cast<double>(step + 1) / static_cast<double>(steps);
  return highest *
         (done < 0.05 ? done / 0.05 : 0.55 + 0.45 * std::cos(std::numbers::pi * (done - 0.05) / 0.95));
}
