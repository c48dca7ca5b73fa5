#include <weft/dist_optim/lbfgs/internal/strong_wolfe.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace weft::dist_optim {
namespace {

constexpr double c1 = 1e-4, c2 = 0.9;
constexpr std::uint64_t max_trials = 25;  // beyond the first
constexpr double least_change = 1e-9;

// The minimum, within [low, high], of the cubic that has these losses and slopes at a and b.
double interpolate(const StrongWolfe::Point& a, const StrongWolfe::Point& b, double low, double high) {
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const auto& [left, right] = a.t <= b.t ? std::tie(a, b) : std::tie(b, a);
  const double t =
      right.t - (right.t - left.t) * ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2));
  return std::min(std::max(t, low), high);
}

}  // namespace

StrongWolfe::StrongWolfe(double t, double loss, double slope, double largest)
    : start_{0, loss, slope, 0}, largest_(largest), t_(t), previous_(start_) {}

void StrongWolfe::evaluated(double loss, double slope) {
  const Point point{t_, loss, slope, ++evaluations_};
  if (zooming_) {
    zoom(point);
  } else {
    bracket(point);
  }
}

std::vector<std::uint64_t> StrongWolfe::candidates() const {
  std::vector<std::uint64_t> numbers;
  for (const Point& point : zooming_ ? bracket_ : std::array{start_, previous_})
    if (point.number != 0) numbers.push_back(point.number);
  return numbers;
}

bool StrongWolfe::decreases_enough(const Point& point) const {
  return !(point.loss > start_.loss + c1 * point.t * start_.slope);
}
bool StrongWolfe::flat_enough(const Point& point) const {
  return std::abs(point.slope) <= -c2 * start_.slope;
}

// Increases the step until a minimum is bracketed.
void StrongWolfe::bracket(const Point& point) {
  const std::uint64_t trials = evaluations_ - 1;
  if (trials == max_trials) {
    begin_zoom(start_, point);
    done_ = true;
  } else if (!decreases_enough(point) || (trials > 1 && point.loss >= previous_.loss)) {
    begin_zoom(previous_, point);
  } else if (flat_enough(point)) {
    begin_zoom(point, point);
    done_ = true;
  } else if (point.slope >= 0) {
    begin_zoom(previous_, point);
  } else {
    t_ = interpolate(previous_, point, point.t + 0.01 * (point.t - previous_.t), point.t * 10);
    previous_ = point;
  }
  if (zooming_ && !done_) next_in_bracket();
}

void StrongWolfe::begin_zoom(const Point& one, const Point& other) {
  zooming_ = true;
  bracket_ = {one, other};
  low_ = one.loss <= other.loss ? 0 : 1;
}

void StrongWolfe::zoom(const Point& point) {
  Point& low = bracket_[low_];
  Point& high = bracket_[1 - low_];
  if (!decreases_enough(point) || point.loss >= low.loss) {
    high = point;
    low_ = bracket_[0].loss <= bracket_[1].loss ? 0 : 1;
  } else {
    if (flat_enough(point)) {
      done_ = true;
    } else if (point.slope * (high.t - low.t) >= 0) {
      high = low;
    }
    low = point;
  }
  if (std::abs(bracket_[1].t - bracket_[0].t) * largest_ < least_change || evaluations_ - 1 >= max_trials)
    done_ = true;
  if (!done_) next_in_bracket();
}

// If the interpolation stays close to an end of the bracket, the second trial is a tenth of the bracket away
// from that end.
void StrongWolfe::next_in_bracket() {
  const auto [left, right] = std::minmax(bracket_[0].t, bracket_[1].t);
  t_ = interpolate(bracket_[0], bracket_[1], left, right);
  const double tenth = 0.1 * (right - left);
  if (!(std::min(right - t_, t_ - left) < tenth)) {
    little_progress_ = false;
  } else if (little_progress_ || t_ >= right || t_ <= left) {
    t_ = std::abs(t_ - right) < std::abs(t_ - left) ? right - tenth : left + tenth;
    little_progress_ = false;
  } else {
    little_progress_ = true;
  }
}

}  // namespace weft::dist_optim
