// What programs do with a module, for the training matrices. Each program runs in one process and on several
// ranks, and the parameters at the end are equal.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace weft::sharded::testing {

enum class Program : std::uint8_t {
  load,
  unfreeze,  // some layers are frozen at the start
  accumulate,
  overflow,
  kept_gradient,
  // The layers of the module do it, and the program only trains.
  dropout,
  recomputation,
  drawing_thread,
  drawing_thread_refused
};
inline const char* name_of(Program program) {
  static const char* const names[] = {"Load",          "Unfreeze",      "Accumulate",
                                      "Overflow",      "KeptGradient",  "Dropout",
                                      "Recomputation", "DrawingThread", "DrawingThreadRefused"};
  return names[static_cast<std::size_t>(program)];
}

// A module and its optimizer: the whole module, or what a rank has of it.
class Trainer {
 public:
  virtual ~Trainer() = default;
  // scale: a factor of the loss. sync false: more backwards follow before the step.
  virtual void backward(int number, double scale, bool sync) = 0;
  virtual void step() = 0;
  virtual void zero_grad() = 0;
  virtual bool unscale(double factor) = 0;
  virtual void load() = 0;
  virtual void freeze(bool on) = 0;
  virtual std::vector<at::Tensor> leaves() = 0;  // the tensors that have gradients

  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const at::Tensor& leaf : leaves()) all.push_back(leaf.grad());
    return all;
  }
  void train(int number) {
    zero_grad();
    backward(number, 1, true);
    step();
  }
};

// Unscales gradients in one process. Returns whether all are finite.
inline bool unscale_alone(const std::vector<at::Tensor>& gradients, double factor) {
  bool finite = true;
  const at::NoGradGuard no_grad;
  for (at::Tensor gradient : gradients)
    finite = gradient.div_(factor).isfinite().all().item<bool>() && finite;
  return finite;
}

inline void run(Program program, Trainer& trainer) {
  switch (program) {
    case Program::load:
      trainer.train(0);
      trainer.load();
      break;
    case Program::unfreeze:
      for (int number = 0; number < 2; ++number) trainer.train(number);
      trainer.freeze(false);
      break;
    case Program::accumulate:
      for (int number = 0; number < 2; ++number) {
        trainer.zero_grad();
        trainer.backward(10 + 2 * number, 0.5, false);
        trainer.backward(11 + 2 * number, 0.5, true);
        trainer.step();
      }
      break;
    case Program::overflow:
      for (int number = 0; number < 3; ++number) {
        trainer.zero_grad();
        trainer.backward(number, number == 1 ? std::numeric_limits<double>::infinity() : 4, true);
        const bool finite = trainer.unscale(4);
        EXPECT_EQ(finite, number != 1);
        if (finite) trainer.step();
      }
      break;
    case Program::kept_gradient: {
      trainer.train(0);
      const std::vector<at::Tensor> kept = trainer.gradients();
      std::vector<at::Tensor> copies;
      for (const at::Tensor& gradient : kept) copies.push_back(gradient.clone());
      trainer.train(1);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
      break;
    }
    default:
      break;
  }
  for (int number = 2; number < 4; ++number) trainer.train(number);
}

}  // namespace weft::sharded::testing
