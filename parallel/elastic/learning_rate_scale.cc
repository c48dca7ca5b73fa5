#include <weft/parallel/elastic/learning_rate_scale.h>

#include <weft/rpc/core/error.h>

#include <string>

namespace weft::elastic {

double warm_up_factor(double from, double to, std::uint64_t step, std::uint64_t warm_up) {
  if (to <= from || step >= warm_up) return to;
  return from + (to - from) * static_cast<double>(step) / static_cast<double>(warm_up);
}

double LearningRateScale::next(int present_workers) {
  if (workers < 1 || present_workers < 1)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "elastic::LearningRateScale: " + std::to_string(present_workers) +
                         " workers, and a rate for " + std::to_string(workers) + ", expected at least 1");
  if (present_workers != present) {
    present = present_workers;
    from = factor;
    steps = 0;
  }
  factor = warm_up_factor(from, static_cast<double>(present) / workers, steps++, warm_up);
  return factor;
}

}  // namespace weft::elastic
