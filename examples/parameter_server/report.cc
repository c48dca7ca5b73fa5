#include "parameter_server/report.h"

#include <fmt/format.h>

using namespace weft;

rpc::Task<bool> Report::batch(std::int64_t images, double loss) {
  progress_.advance(images, loss);
  if (++batches_ % 20 != 0) co_return false;
  co_await server_.call<&Scoreboard::record>(point());
  co_return true;
}

void Report::trained() {
  last_ = point();
  progress_.finish();
}

rpc::Task<void> Report::finish(double test_accuracy) {
  fmt::print("{}: {:.2f} % of the test images are right\n", trainer_, 100 * test_accuracy);
  std::fflush(stdout);
  co_await server_.call<&Scoreboard::finish>(last_, test_accuracy);
}
