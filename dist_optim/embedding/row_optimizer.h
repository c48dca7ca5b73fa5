// RowOptimizer: updates one row of an embedding from the row's gradient. Each row has a separate state.
//
//   sgd               w -= lr g
//   adagrad           s += g²;        w -= lr g / (√s + eps)     (Duchi, Hazan, Singer 2011)
//   row_wise_adagrad  s += mean(g²);  w -= lr g / (√s + eps)     (one s for each row, as in FBGEMM, TorchRec)
//   adam              lazily: a row's moments and count of steps change only when the row is updated
//
// local/row_update.h has the formulas, which SparseAdam and RowwiseAdagrad also use. weight_decay adds
// weight_decay·w to g, and applies only when the row is updated. If every row is updated in every step, a
// dense LibTorch optimizer gives the same rows. A plain value; its functions are pure.
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
  double eps = 1e-8;                  // all kinds except sgd
  double initial_accumulator = 0;     // both kinds of adagrad
  double weight_decay = 0;

  static RowOptimizer sgd(double learning_rate) { return {Kind::sgd, learning_rate}; }
  static RowOptimizer adagrad(double learning_rate, double eps = 1e-10);
  static RowOptimizer row_wise_adagrad(double learning_rate, double eps = 1e-10);
  static RowOptimizer adam(double learning_rate, double beta1 = 0.9, double beta2 = 0.999, double eps = 1e-8);

  void check() const;  // invalid_argument for an invalid number

  // state_size(): the number of floats of a row's state, whose meaning is private to the optimizer. begin()
  // initializes the state of a new row. update() changes the row and its state by one step. `row` and
  // `gradient` have `dimension` floats.
  std::size_t state_size(std::size_t dimension) const;
  void begin(float* state, std::size_t dimension) const;
  void update(float* row, float* state, const float* gradient, std::size_t dimension) const;

  friend bool operator==(const RowOptimizer&, const RowOptimizer&) = default;
};
WEFT_CODEC(RowOptimizer, kind, learning_rate, beta1, beta2, eps, initial_accumulator, weight_decay)

}  // namespace weft::dist_optim
