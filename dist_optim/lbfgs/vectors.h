// LbfgsVectors: what L-BFGS keeps beside one object's parameters: this object's slices of the history, of the
// direction and of the gradients. The trainer sees numbers only, and says what is done next.
//
// All slices are flat, in the order, dtype and on the device of the object's parameters, at most
// 2·history_size + 10 of them, each as large as the parameters. The parameters are moved by
// ParameterHost::change(), so that open passes keep what they have read.
//
// A step: take() and settle() the gradient where the parameters are; direct(); then, at points along the
// direction, move_to() and take(); settle() the point that was chosen; direct() again. end_step() or
// restore() ends it.
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

// The maximum, or NaN where either is.
inline double larger(double a, double b) { return b > a || std::isnan(b) ? b : a; }

// Of one gradient g.
struct LbfgsMeasures {
  double largest = 0;      // max |g|
  double sum = 0;          // Σ |g|
  double slope = 0;        // g·d, where there is a direction
  LbfgsProducts products;  // where the gradient was settled

  WEFT_EXPORT void add(const LbfgsMeasures& more);  // those of another slice
};

class WEFT_EXPORT LbfgsVectors {
 public:
  using Point = std::uint64_t;

  // `invalid_argument` where the parameters are not real, or not of one dtype and on one device, or the
  // history is of no pair. host outlives this.
  LbfgsVectors(ParameterHost& host, std::size_t history_size);

  // The gradient at a point, by index into the host's parameters; zeros where there is none. Of the others
  // only those in `keep` stay. Errors as check_gradients.
  LbfgsMeasures take(Point point, const Gradients& gradients, const std::vector<Point>& keep);
  // The gradient of that point is the one to go on from; 0 is where the direction began, all others were
  // taken.
  LbfgsMeasures settle(Point point);

  // Makes the direction from the gradient that was settled last, and moves t along it, or only notes it. max
  // |d|.
  double direct(const LbfgsDirection& direction, double t, bool stay);
  // From where the direction began.
  void move_to(double t);

  void end_step();
  // The parameters as they were when the step's first direction was made; nothing is known any more.
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
  at::Tensor new_s_, new_y_;            // the pair of the last step, until it joins or not
  at::Tensor gradient_;                 // settled
  at::Tensor direction_;                // and where it began:
  at::Tensor base_, base_gradient_;     // parameters and gradient there
  at::Tensor start_;                    // the parameters when the step began, once they have moved
  std::map<Point, at::Tensor> points_;  // gradients along the direction
  double t_ = 0;                        // how far along it the parameters are, or were to be
};

}  // namespace weft::dist_optim
