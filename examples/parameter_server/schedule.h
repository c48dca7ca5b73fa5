// The learning rate: constant at first, then falling linearly to 0 over the rest of the run.
#pragma once

#include <algorithm>

inline double scheduled(double learning_rate, double fraction_done) {
  constexpr double constant_until = 0.3;
  return learning_rate * std::min(1.0, (1 - fraction_done) / (1 - constant_until));
}
