// LbfgsVectors: the vectors of L-BFGS for one object, stored next to its parameters. They are this object's
// slices of the history, of the direction and of the gradients. The trainer receives only numbers, and
// decides the next operation.
//
// Each slice is a flat tensor with the order, dtype, device and size of the object's parameters. There are at
// most 2·history_size + 10 slices. OwnedParameters::change() moves the parameters, so open passes keep the
// version that they have read.
//
// The calls of a step: take() and settle() the gradient at the present parameters; direct(); then, at points
// along the direction, move_to() and take(); settle() the chosen point; direct() again; and so on. end_step()
// or restore() ends the step.
//
// Owner: LbfgsOwner. Thread-safety: none.
#pragma once

#include <weft/dist_optim/lbfgs/internal/gram.h>
#include <weft/dist_optim/local/owned_parameters.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::dist_optim {

// The maximum of a and b; NaN if a or b is NaN.
inline double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

// The measurements of one gradient g.
struct LbfgsMeasures {
  double largest = 0;      // max |g|
  double sum = 0;          // Σ |g|
  double slope = 0;        // g·d, if a direction exists
  LbfgsProducts products;  // if the gradient was settled

  WEFT_EXPORT void add(const LbfgsMeasures& more);  // adds those of another slice
};

class WEFT_EXPORT LbfgsVectors {
 public:
  // The number of an evaluation.
  using Point = std::uint64_t;

  // `invalid_argument`: the parameters are not real, have several dtypes or devices, or the history size is
  // 0. owned outlives this object.
  LbfgsVectors(OwnedParameters& owned, std::size_t history_size);

  // Records the gradient at a point. gradients: by index of the owned parameters; a parameter without a
  // gradient counts as zeros. Drops the gradients of all other points that are not in `keep`. Errors: those
  // of check_gradients().
  LbfgsMeasures take(Point point, const Gradients& gradients, const std::vector<Point>& keep);
  // Selects the gradient of that point as the next gradient of the step. 0: the start of the direction; every
  // other point must have been recorded by take().
  LbfgsMeasures settle(Point point);

  // Computes the direction from the last settled gradient, and moves the parameters by t along it. stay:
  // true: does not move the parameters, and only records t. Returns max |d|.
  double direct(const LbfgsDirection& direction, double t, bool stay);
  // Moves the parameters to t along the direction, from its start.
  void move_to(double t);

  void end_step();
  // Restores the parameters that the object had before the step's first direction, and drops the history.
  void restore();

 private:
  at::Tensor flat(const Gradients& gradients) const;
  at::Tensor parameters() const;
  void set_parameters(const at::Tensor& values);
  LbfgsMeasures measure(const at::Tensor& gradient) const;
  LbfgsProducts products() const;

  OwnedParameters& owned_;
  const std::size_t history_size_;
  std::deque<at::Tensor> s_, y_;        // the history, oldest first
  at::Tensor new_s_, new_y_;            // the newest pair, until it enters the history or is dropped
  at::Tensor gradient_;                 // the last settled gradient
  at::Tensor direction_;                // d
  at::Tensor base_, base_gradient_;     // parameters and gradient at the start of the direction
  at::Tensor start_;                    // the parameters at the beginning of the step, once they have moved
  std::map<Point, at::Tensor> points_;  // gradients along the direction
  double t_ = 0;                        // the position along the direction, or with `stay` the intended one
};

}  // namespace weft::dist_optim
