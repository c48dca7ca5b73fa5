// The arithmetic of one element of a step, for the kernel and for its twin on the CPU. For their sources.
//
// What is the same for all elements (powers, differences from 1) is worked out once, on the host, in double,
// as LibTorch does, and rounded to the elements' type: terms_of().
#pragma once

#include <weft/dist_optim/fused/fused_update.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/kernel/host_device.h>

#include <cmath>

namespace weft::dist_optim::fused {

template <class T>
struct SgdTerms {
  T minus_lr, momentum, undampened, weight_decay;
  bool decays, has_momentum, nesterov, maximize, first;
};

template <class T>
SgdTerms<T> terms_of(const Sgd& options) {
  if (options.nesterov && (options.momentum <= 0 || options.dampening != 0))
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "nesterov needs a momentum and no dampening");
  return {.minus_lr = static_cast<T>(-options.lr),
          .momentum = static_cast<T>(options.momentum),
          .undampened = static_cast<T>(1 - options.dampening),
          .weight_decay = static_cast<T>(options.weight_decay),
          .decays = options.weight_decay != 0,
          .has_momentum = options.momentum != 0,
          .nesterov = options.nesterov,
          .maximize = options.maximize,
          .first = options.first};
}

// momentum is only touched where there is one.
template <class T>
WEFT_HOST_DEVICE inline void step_element(const SgdTerms<T>& terms, T& parameter, T gradient, T* momentum) {
  T direction = terms.maximize ? -gradient : gradient;
  if (terms.decays) direction = direction + terms.weight_decay * parameter;
  if (terms.has_momentum) {
    const T kept = terms.first ? direction : terms.momentum * *momentum + terms.undampened * direction;
    *momentum = kept;
    direction = terms.nesterov ? direction + terms.momentum * kept : kept;
  }
  parameter = parameter + terms.minus_lr * direction;
}

template <class T>
struct AdamTerms {
  T beta1, beta2, rest1, rest2, eps, weight_decay, shrinking, root_of_correction2, minus_step_size;
  bool decays, decoupled, amsgrad, maximize;
};

template <class T>
AdamTerms<T> terms_of(const Adam& options) {
  if (options.step < 1) throw rpc::Error(rpc::ErrorKind::invalid_argument, "Adam's steps are counted from 1");
  const auto step = static_cast<double>(options.step);
  const double correction1 = 1 - std::pow(options.beta1, step);
  const double correction2 = 1 - std::pow(options.beta2, step);
  return {.beta1 = static_cast<T>(options.beta1),
          .beta2 = static_cast<T>(options.beta2),
          .rest1 = static_cast<T>(1 - options.beta1),
          .rest2 = static_cast<T>(1 - options.beta2),
          .eps = static_cast<T>(options.eps),
          .weight_decay = static_cast<T>(options.weight_decay),
          .shrinking = static_cast<T>(1 - options.lr * options.weight_decay),
          .root_of_correction2 = static_cast<T>(std::sqrt(correction2)),
          .minus_step_size = static_cast<T>(-(options.lr / correction1)),
          .decays = options.weight_decay != 0,
          .decoupled = options.decoupled,
          .amsgrad = options.amsgrad,
          .maximize = options.maximize};
}

// max_exp_avg_sq is only touched with amsgrad.
template <class T>
WEFT_HOST_DEVICE inline void step_element(const AdamTerms<T>& terms, T& parameter, T gradient, T& exp_avg,
                                          T& exp_avg_sq, T* max_exp_avg_sq) {
  if (terms.maximize) gradient = -gradient;
  if (terms.decays) {
    if (terms.decoupled)
      parameter = parameter * terms.shrinking;
    else
      gradient = gradient + terms.weight_decay * parameter;
  }
  exp_avg = exp_avg * terms.beta1 + terms.rest1 * gradient;
  exp_avg_sq = exp_avg_sq * terms.beta2 + terms.rest2 * gradient * gradient;
  T second = exp_avg_sq;
  if (terms.amsgrad) {
    const T before = *max_exp_avg_sq;
    if (!(second > before || second != second)) second = before;  // a NaN stays, wherever it was
    *max_exp_avg_sq = second;
  }
  const T denominator = std::sqrt(second) / terms.root_of_correction2 + terms.eps;
  parameter = parameter + terms.minus_step_size * exp_avg / denominator;
}

// Calls visit(T{}) with the type of `element`.
template <class Visit>
void with_type(Element element, Visit visit) {
  switch (element) {
    case Element::float32:
      return visit(float{});
    case Element::float64:
      return visit(double{});
  }
}

// That each piece has the state that the options need: the same errors before a loop and before a launch.
inline void expect_state(const Sgd& options, std::span<const SgdPiece> pieces) {
  if (options.momentum == 0) return;
  for (const SgdPiece& piece : pieces)
    if (piece.count != 0 && piece.momentum == nullptr)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "a piece without memory for its momentum");
}
inline void expect_state(const Adam& options, std::span<const AdamPiece> pieces) {
  for (const AdamPiece& piece : pieces)
    if (piece.count != 0 && (piece.exp_avg == nullptr || piece.exp_avg_sq == nullptr ||
                             (options.amsgrad && piece.max_exp_avg_sq == nullptr)))
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "a piece without memory for its averages");
}

}  // namespace weft::dist_optim::fused
