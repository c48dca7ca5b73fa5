// The formulas of Adam and Adagrad that all optimizers of rows use: SparseAdam, RowwiseAdagrad, and the
// RowOptimizer of embeddings.
//
// X is float for one element of a row, or at::Tensor for many rows at once, on any device. S is the type of a
// step's constants: float if X is float, so that no value is converted to double and back; double if X is
// at::Tensor. The caller applies weight decay, and computes the mean of a row's squares. Thread-safety: pure
// functions.
#pragma once

#include <cmath>
#include <cstdint>

namespace weft::dist_optim {

// Adam (Kingma and Ba 2015) with bias correction at step t = 1, 2, ….
template <class S>
struct AdamStep {
  // Where eps is added: to √v (torch.optim.SparseAdam), or to the corrected √v̂ (torch.optim.Adam).
  enum class Eps : std::uint8_t { to_root, to_corrected_root };

  // t: the number of the step, from 1. The constructor computes the values that are the same for all
  // elements.
  AdamStep(double rate, double beta1, double beta2, double eps, double t, Eps place)
      : beta1(static_cast<S>(beta1)),
        beta2(static_cast<S>(beta2)),
        rest1(static_cast<S>(1 - beta1)),
        rest2(static_cast<S>(1 - beta2)),
        eps(static_cast<S>(eps)) {
    const double root = std::sqrt(1 - std::pow(beta2, t)), size = rate / (1 - std::pow(beta1, t));
    const bool corrected = place == Eps::to_corrected_root;
    this->size = static_cast<S>(corrected ? size : size * root);
    this->root = static_cast<S>(corrected ? root : 1);
  }

  S beta1, beta2, rest1, rest2;  // rest1 = 1 - beta1, rest2 = 1 - beta2
  S eps;                         // as given
  S size;                        // the learning rate, corrected
  S root;                        // the divisor of √v
};

// Updates the moments m and v with the gradient g. Returns the decrease of the parameter.
template <class X, class S>
X adam_change(X& m, X& v, const X& g, const AdamStep<S>& step) {
  using std::sqrt;
  m = step.beta1 * m + step.rest1 * g;
  v = step.beta2 * v + step.rest2 * g * g;
  return step.size * m / (sqrt(v) / step.root + step.eps);
}

// Adagrad (Duchi, Hazan and Singer 2011): returns the factor by which the gradient is multiplied to give the
// decrease of the parameter. sum: the sum of the squared gradients of one element or row, including this
// step's.
template <class X, class S>
X adagrad_rate(const X& sum, S rate, S eps) {
  using std::sqrt;
  return rate / (sqrt(sum) + eps);
}

}  // namespace weft::dist_optim
