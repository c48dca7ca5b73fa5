#include <weft/dist_optim/embedding/row_optimizer.h>
#include <weft/dist_optim/local/internal/row_update.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

namespace weft::dist_optim {

RowOptimizer RowOptimizer::adagrad(double learning_rate, double eps) {
  RowOptimizer made{Kind::adagrad, learning_rate};
  made.eps = eps;
  return made;
}

RowOptimizer RowOptimizer::row_wise_adagrad(double learning_rate, double eps) {
  RowOptimizer made = adagrad(learning_rate, eps);
  made.kind = Kind::row_wise_adagrad;
  return made;
}

RowOptimizer RowOptimizer::adam(double learning_rate, double beta1, double beta2, double eps) {
  return {Kind::adam, learning_rate, beta1, beta2, eps};
}

void RowOptimizer::check() const {
  const auto refuse = [](const std::string& what) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "row optimizer: " + what);
  };
  if (kind > Kind::adam) refuse("unknown kind " + std::to_string(static_cast<int>(kind)));
  for (const double number : {learning_rate, eps, initial_accumulator, weight_decay})
    if (!std::isfinite(number) || number < 0)
      refuse("an option is " + std::to_string(number) + ", expected a finite number of at least 0");
  for (const double beta : {beta1, beta2})
    if (!(beta >= 0 && beta < 1))
      refuse("a beta is " + std::to_string(beta) + ", expected a number in [0, 1)");
}

std::size_t RowOptimizer::state_size(std::size_t dimension) const {
  switch (kind) {
    case Kind::sgd:
      return 0;
    case Kind::adagrad:
      return dimension;
    case Kind::row_wise_adagrad:
      return 1;
    case Kind::adam:
      return 1 + 2 * dimension;  // steps (the bits of an integer), first and second moments
  }
  return 0;
}

void RowOptimizer::begin(float* state, std::size_t dimension) const {
  const bool accumulates = kind == Kind::adagrad || kind == Kind::row_wise_adagrad;
  std::fill_n(state, state_size(dimension), accumulates ? static_cast<float>(initial_accumulator) : 0.0f);
}

void RowOptimizer::update(float* row, float* state, const float* gradient, std::size_t dimension) const {
  const auto rate = static_cast<float>(learning_rate), epsilon = static_cast<float>(eps);
  const auto decay = static_cast<float>(weight_decay);
  switch (kind) {
    case Kind::sgd:
      for (std::size_t i = 0; i < dimension; ++i) row[i] -= rate * (gradient[i] + decay * row[i]);
      return;
    case Kind::adagrad:
      for (std::size_t i = 0; i < dimension; ++i) {
        const float g = gradient[i] + decay * row[i];
        state[i] += g * g;
        row[i] -= adagrad_rate(state[i], rate, epsilon) * g;
      }
      return;
    case Kind::row_wise_adagrad: {
      float squares = 0;
      for (std::size_t i = 0; i < dimension; ++i) {
        const float g = gradient[i] + decay * row[i];
        squares += g * g;
      }
      state[0] += squares / static_cast<float>(dimension);
      const float scale = adagrad_rate(state[0], rate, epsilon);
      for (std::size_t i = 0; i < dimension; ++i) row[i] -= scale * (gradient[i] + decay * row[i]);
      return;
    }
    case Kind::adam: {
      const std::uint32_t count = std::bit_cast<std::uint32_t>(state[0]) + 1;
      state[0] = std::bit_cast<float>(count);
      float *first = state + 1, *second = first + dimension;
      const AdamStep<float> step(learning_rate, beta1, beta2, eps, count,
                                 AdamStep<float>::Eps::to_corrected_root);
      for (std::size_t i = 0; i < dimension; ++i)
        row[i] -= adam_change(first[i], second[i], gradient[i] + decay * row[i], step);
      return;
    }
  }
}

}  // namespace weft::dist_optim
