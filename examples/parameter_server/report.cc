#include "parameter_server/report.h"

#include <fmt/format.h>

using namespace weft;

rpc::Task<bool> Report::batch(std::int64_t images, double loss) {
  progress_.advance(images, loss);
  if (progress_.state().batches % 20 != 0) co_return false;
  co_await server_.call<&Scoreboard::record>(point());
  co_return true;
}

dist_optim::Notes Report::notes() const {
  const Progress::State& state = progress_.state();
  return {{"images", std::to_string(state.images)},
          {"batches", std::to_string(state.batches)},
          {"loss", fmt::format("{}", state.loss)}};
}

void Report::go_on(const dist_optim::Notes& notes) {
  progress_.go_on(
      {std::stoll(notes.at("images")), std::stoll(notes.at("batches")), std::stod(notes.at("loss"))});
  fmt::print("{}: resumes after {} images\n", trainer_, notes.at("images"));
  std::fflush(stdout);
}

rpc::Task<void> Report::meet(std::size_t trainers) {
  co_await server_.call<&Scoreboard::meet>(std::uint64_t{trainers});
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
