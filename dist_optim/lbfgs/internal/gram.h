// LbfgsGram: L-BFGS's two-loop recursion on dot products only, so that the vectors may stay on their owners
// (vector-free L-BFGS: Chen, Wang and Zhou, NIPS 2014).
//
// The history consists of pairs, oldest first: s, the change of the parameters by a step, and y, the change
// of the gradient. The direction is a combination of these and of the gradient g; its coefficients follow
// from the products s·y, y·y, s·g, y·g and g·g (s·s is not needed). After each evaluation, the owners send
// the products of the new gradient and of the newest pair with all vectors; the other products are known from
// earlier evaluations.
//
// As in torch::optim::LBFGS, a pair enters the history if s·y > 1e-10, and a full history then drops its
// oldest pair. The initial Hessian is y·y/s·y of the last pair that entered.
//
// Pure data. Owner: the trainer, which has one LbfgsGram for all modules. Thread-safety: none.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <vector>

namespace weft::dist_optim {

// The products of the gradient g, and of the new pair if a step led to g, with the k pairs of the history.
// The last entry of s_y, y_y, s_g and y_g is for the new pair. If there is no new pair, s_y, y_s and y_y are
// empty, and s_g and y_g have k entries.
struct LbfgsProducts {
  std::vector<double> s_y;       // the new s with every y: k + 1
  std::vector<double> y_s;       // the new y with the history's s: k
  std::vector<double> y_y;       // the new y with every y: k + 1
  std::vector<double> s_g, y_g;  // every s and y with g: k + 1 each
  double g_g = 0;

  // Adds the products over another slice of the vectors. `internal`: `more` has another number of pairs.
  WEFT_EXPORT void add(const LbfgsProducts& more);
};

// d = scale · (-g - Σ y_weights[i] y_i) + Σ s_weights[i] s_i, over the history after the update.
struct LbfgsDirection {
  bool joins = false;  // the new pair enters the history
  double scale = 1;
  std::vector<double> y_weights, s_weights;
};

class WEFT_EXPORT LbfgsGram {
 public:
  // history_size: the maximum number of pairs, at least 1.
  explicit LbfgsGram(std::size_t history_size) : history_size_(history_size) {}

  // Returns the direction for the new gradient of `products`. `internal`: they have another number of pairs.
  LbfgsDirection update(const LbfgsProducts& products);
  double slope() const { return slope_; }  // g·d of the last direction
  std::size_t pairs() const { return sy_.size(); }
  void clear();

 private:
  using Matrix = std::vector<std::vector<double>>;

  bool take_pair(const LbfgsProducts& products);
  void two_loops(LbfgsDirection& direction);

  const std::size_t history_size_;
  Matrix sy_, yy_;  // [i][j]: s_i·y_j and y_i·y_j
  std::vector<double> sg_, yg_;
  double gg_ = 0;
  double scale_ = 1;
  double slope_ = 0;
};

}  // namespace weft::dist_optim
