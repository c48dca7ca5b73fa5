// StrongWolfe: a line search for a step t along a direction d that satisfies the strong Wolfe conditions:
// sufficient decrease (c1 = 1e-4) and a sufficiently small slope (c2 = 0.9). trial() is the t at which the
// caller must evaluate the loss next; evaluated() receives the result.
//
// Bracketing with growing steps, then zooming, both by cubic interpolation (Nocedal and Wright, Numerical
// Optimization, algorithms 3.5 and 3.6, in the form of minFunc), with torch::optim::LBFGS's limits: the
// search is done after 25 trials in addition to the first one, or when the remaining bracket changes no
// parameter by 1e-9 or more. If no trial has satisfied the conditions by then, best() is the known point with
// the lowest loss.
//
// Pure data. Thread-safety: none.
#pragma once

#include <weft/rpc/core/export.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT StrongWolfe {
 public:
  // One evaluation along the direction.
  struct Point {
    double t = 0;
    double loss = 0;
    double slope = 0;          // the directional derivative g·d
    std::uint64_t number = 0;  // of the evaluation, from 1; 0: the start of the search
  };

  // t: the first trial, positive. loss, slope: at t = 0; the slope is negative. largest: max |d|.
  StrongWolfe(double t, double loss, double slope, double largest);

  // Whether the search is done. If not, evaluate the loss at trial() and call evaluated().
  bool done() const { return done_; }
  double trial() const { return t_; }
  // slope: the directional derivative at trial().
  void evaluated(double loss, double slope);

  std::uint64_t evaluations() const { return evaluations_; }  // so far; not counting t = 0
  // The numbers of the earlier points that may still become best(), without 0. Keep their gradients.
  std::vector<std::uint64_t> candidates() const;
  const Point& best() const { return bracket_[low_]; }  // when done

 private:
  void bracket(const Point& point);
  void zoom(const Point& point);
  void begin_zoom(const Point& one, const Point& other);
  void next_in_bracket();
  bool decreases_enough(const Point& point) const;
  bool flat_enough(const Point& point) const;

  const Point start_;
  const double largest_;
  double t_;
  std::uint64_t evaluations_ = 0;
  bool zooming_ = false, done_ = false;
  Point previous_;                // while bracketing
  std::array<Point, 2> bracket_;  // while zooming
  std::size_t low_ = 0;           // the index in bracket_ of the point with the lower loss
  bool little_progress_ = false;  // the last trial was close to an end of the bracket
};

}  // namespace weft::dist_optim
