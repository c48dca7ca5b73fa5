// StrongWolfe: a line search for a step t along a direction d that satisfies the strong Wolfe conditions:
// sufficient decrease (c1 = 1e-4) and a sufficiently small slope (c2 = 0.9). It returns the t at which the
// loss must be evaluated next, and receives the result.
//
// Bracketing with growing steps, then zooming, both by cubic interpolation (Nocedal and Wright, Numerical
// Optimization, algorithms 3.5 and 3.6, in the form of minFunc), with torch::optim::LBFGS's limits: 25 trials
// beyond the first; it ends if the remaining bracket changes no parameter by 1e-9. It may end without having
// satisfied the conditions, with the lowest point that it knows.
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
  // An evaluation along the direction.
  struct Point {
    double t = 0;
    double loss = 0;
    double slope = 0;          // the directional derivative g·d
    std::uint64_t number = 0;  // of its evaluation, from 1; 0: the start of the search
  };

  // t: the first to try, positive. slope: at t = 0, negative. largest: max |d|.
  StrongWolfe(double t, double loss, double slope, double largest);

  // False: evaluate trial() and report the result to evaluated().
  bool done() const { return done_; }
  double trial() const { return t_; }  // to be evaluated, while not done
  // slope: the directional derivative at trial().
  void evaluated(double loss, double slope);

  std::uint64_t evaluations() const { return evaluations_; }  // so far, without the one at 0
  // The earlier points that may still become best(), whose gradients must be kept; without 0.
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
  std::size_t low_ = 0;           // the lower point of it
  bool little_progress_ = false;  // the last trial was close to an end of the bracket
};

}  // namespace weft::dist_optim
