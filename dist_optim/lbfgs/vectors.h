// LbfgsVectors: the vectors of L-BFGS for one object, stored next to its parameters: this object's slices of
// the history, of the direction and of the gradients. The trainer sees only numbers, and decides the next
// operation.
//
// All slices are flat, in the order, dtype and on the device of the object's parameters, at most
// 2·history_size + 10 of them, each as large as the parameters. ParameterHost::change() moves the parameters,
// so open passes keep the version that they have read.
//
// A step: take() and settle() the gradient at the present parameters; direct(); then, at points along the
// direction, move_to() and take(); settle() the chosen point; direct() again. end_step() or restore() ends
// it.
//
// Owner: LbfgsHost. Thread-safety: none.
#pragma once

#include <weft/dist_optim/lbfgs/gram.h>
#include <weft/dist_optim/local/parameter_host.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dist_optim {

// The maximum, or NaN if either is.
inline double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

// Of one gradient g.
struct LbfgsMeasures {
  double largest = 0;      // max |g|
  double sum = 0;          // Σ |g|
  double slope = 0;        // g·d, if a direction exists
  LbfgsProducts products;  // if the gradient was settled

  WEFT_EXPORT void add(const LbfgsMeasures& more);  // those of another slice
};

class WEFT_EXPORT LbfgsVectors {
 public:
  // The number of an evaluation.
  using Point = std::uint64_t;

  // `invalid_argument` if the parameters are not real, or not of one dtype and on one device, or the history
  // size is 0. host outlives this.
  LbfgsVectors(ParameterHost& host, std::size_t history_size);

  // The gradient at a point, by index into the host's parameters; zeros for parameters without one. Of the
  // other points only those in `keep` are kept. Errors as check_gradients.
  LbfgsMeasures take(Point point, const Gradients& gradients, const std::vector<Point>& keep);
  // Continues from the gradient of that point; 0 is the start of the direction, all others were taken.
  LbfgsMeasures settle(Point point);

  // Makes the direction from the last settled gradient, and moves t along it, or only records it. Returns max
  // |d|.
  double direct(const LbfgsDirection& direction, double t, bool stay);
  // From the start of the direction.
  void move_to(double t);

  void end_step();
  // Restores the parameters from before the step's first direction, and drops the history.
  void restore();

 private:
  at::Tensor flat(const Gradients& gradients) const;
  at::Tensor parameters() const;
  void set_parameters(const at::Tensor& values);
  LbfgsMeasures measure(const at::Tensor& gradient) const;
  LbfgsProducts products() const;

  ParameterHost& host_;
  const std::size_t history_size_;
  std::deque<at::Tensor> s_, y_;        // the history, oldest first
  at::Tensor new_s_, new_y_;            // the pair of the last step, until it enters the history or not
  at::Tensor gradient_;                 // settled
  at::Tensor direction_;                // and its start:
  at::Tensor base_, base_gradient_;     // parameters and gradient there
  at::Tensor start_;                    // the parameters at the beginning of the step, once they have moved
  std::map<Point, at::Tensor> points_;  // gradients along the direction
  double t_ = 0;                        // the position of the parameters along it, or the intended one
};

}  // namespace weft::dist_optim
