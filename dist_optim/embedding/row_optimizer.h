// RowOptimizer: updates one row of an embedding from its gradient, independently, with a separate state.
//
//   sgd               w -= lr g
//   adagrad           s += g²;        w -= lr g / (√s + eps)     (Duchi, Hazan, Singer 2011)
//   row_wise_adagrad  s += mean(g²);  the same with one s a row  (as FBGEMM and TorchRec do)
//   adam              lazily: a row's moments and its count of steps change only when it is updated
//
// The formulas are those of local/row_update.h, as in SparseAdam and RowwiseAdagrad. weight_decay adds
// weight_decay·w to g, also only when the row is updated. A dense LibTorch optimizer gives the same rows if
// every row is updated in every step. A plain value; pure.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>

namespace weft::dist_optim {

struct WEFT_EXPORT RowOptimizer {
  // The rule, as above.
  enum class Kind : std::uint8_t { sgd, adagrad, row_wise_adagrad, adam };

  Kind kind = Kind::sgd;              // which rule
  double learning_rate = 0.01;        // at least 0
  double beta1 = 0.9, beta2 = 0.999;  // adam
  double eps = 1e-8;                  // all but sgd
  double initial_accumulator = 0;     // both kinds of adagrad
  double weight_decay = 0;

  static RowOptimizer sgd(double learning_rate) { return {Kind::sgd, learning_rate}; }
  static RowOptimizer adagrad(double learning_rate, double eps = 1e-10);
  static RowOptimizer row_wise_adagrad(double learning_rate, double eps = 1e-10);
  static RowOptimizer adam(double learning_rate, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8);

  void check() const;  // invalid_argument for an invalid number

  // Floats of state in addition to a row of `dimension` floats; their meaning is private to this optimizer.
  std::size_t state_size(std::size_t dimension) const;
  void begin(float* state, std::size_t dimension) const;
  void update(float* row, float* state, const float* gradient, std::size_t dimension) const;

  friend bool operator==(const RowOptimizer&, const RowOptimizer&) = default;
};
WEFT_CODEC(RowOptimizer, kind, learning_rate, beta1, beta2, eps, initial_accumulator, weight_decay)

}  // namespace weft::dist_optim
