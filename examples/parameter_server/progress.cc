#include "parameter_server/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "support/status_lines.h"

namespace {

using namespace std::chrono_literals;

constexpr int bar_width = 24;
constexpr double smoothing = 0.05;

}  // namespace

Progress::Progress(std::string name, std::int64_t total_images)
    : name_(std::move(name)),
      total_(total_images),
      live_(isatty(STDOUT_FILENO) == 1 || std::getenv(examples::status_variable) != nullptr) {}

void Progress::go_on(const State& state) {
  state_ = state;
  images_before_ = state.images;
}

void Progress::advance(std::int64_t images, double loss) {
  state_.images += images;
  ++state_.batches;
  state_.loss += (loss - state_.loss) * std::max(smoothing, 1.0 / static_cast<double>(state_.batches));
  const auto now = Clock::now();
  if (now - drawn_ < (live_ ? Clock::duration(100ms) : Clock::duration(5s)) && !first_) return;
  first_ = false;
  drawn_ = now;
  fmt::print("{}{}", line(), live_ ? "\033[K\r" : "\n");
  std::fflush(stdout);
}

void Progress::finish() {
  fmt::print("{}{}", line(), live_ ? "\033[K\n" : "\n");
  std::fflush(stdout);
}

std::string Progress::line() const {
  const int filled = static_cast<int>(fraction() * bar_width);
  return fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f} %  loss {:.4f}  {:6.0f} images/s", name_, "", filled, "",
                     bar_width - filled, 100 * fraction(), state_.loss,
                     static_cast<double>(state_.images - images_before_) / seconds());
}
