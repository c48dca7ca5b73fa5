#include "fashion_mnist/progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace {

using namespace std::chrono_literals;

constexpr int bar_width = 24;
constexpr double smoothing = 0.05;

}  // namespace

Progress::Progress(std::string name, std::int64_t total_images, std::string rows)
    : name_(std::move(name)), total_(total_images), rows_(std::move(rows)) {}

void Progress::go_on(const State& state) {
  state_ = state;
  images_before_ = state.images;
}

void Progress::advance(std::int64_t images, double loss) {
  state_.images += images;
  ++state_.batches;
  state_.loss += (loss - state_.loss) * std::max(smoothing, 1.0 / static_cast<double>(state_.batches));
  const auto now = Clock::now();
  if (now - drawn_ < 5s && !first_) return;
  first_ = false;
  drawn_ = now;
  fmt::print("{}\n", line());
}

void Progress::finish() { fmt::print("{}\n", line()); }

std::string Progress::line() const {
  const int filled = static_cast<int>(fraction() * bar_width);
  return fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f} %  loss {:.4f}  {:6.0f} {}/s", name_, "", filled, "",
                     bar_width - filled, 100 * fraction(), state_.loss,
                     static_cast<double>(state_.images - images_before_) / seconds(), rows_);
}
