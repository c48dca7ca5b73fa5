// GeneratorStates: the random generators that a forward can draw from, so that it can run again with the same
// numbers.
//
// These are the generators of the process, of the tensors' devices, and of the program. Other threads may
// draw from the generators of the process and of the devices at any time: SecondRun detects it. Not
// thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT GeneratorStates {
 public:
  // The current states. tensors: the tensors that the forward uses. others: generators of the program.
  static GeneratorStates of(const std::vector<at::Tensor>& tensors,
                            const std::vector<at::Generator>& others = {});
  static GeneratorStates of_these_alone(const std::vector<at::Generator>& generators);
  GeneratorStates now() const;  // the current states of the same generators
  void restore() const;
  friend WEFT_EXPORT bool operator==(const GeneratorStates& a, const GeneratorStates& b);

 private:
  void add(at::Generator generator);
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// The constructor sets the generators to `states`, so that the same random numbers are drawn again. The
// destructor restores the states that the generators had at construction.
class DrawsAgain {
 public:
  explicit DrawsAgain(const GeneratorStates& states) : now_(states.now()) { states.restore(); }
  ~DrawsAgain() { now_.restore(); }
  DrawsAgain(const DrawsAgain&) = delete;
  DrawsAgain& operator=(const DrawsAgain&) = delete;

 private:
  const GeneratorStates now_;
};

// The second run of a forward, with the random numbers of the first.
//
//   SecondRun second(inputs, generators);   // before the first run
//   auto outputs = forward(inputs);
//   second.note_first(outputs);
//   auto again = second.run([&] { return forward(inputs); });
//
// If random numbers were drawn during the first run, run() compares the outputs of the two runs, through a
// summary of a few kilobytes: another thread may have drawn some of the numbers, or the same number of them
// in another order. Outputs on an accelerator are compared only if the generators' states after the two runs
// differ, because a comparison waits for the device.
class WEFT_EXPORT SecondRun {
 public:
  // tensors: the tensors that the forward uses. own: generators of the program from which it draws.
  // restores_defaults: whether run() also restores the generators of the process and of the devices. If other
  // threads run forwards at the same time, it must not.
  SecondRun(const std::vector<at::Tensor>& tensors, const std::vector<at::Generator>& own,
            bool restores_defaults = true);
  void note_first(const std::vector<at::Tensor>& outputs);
  // failed_precondition: the outputs differ, because the random numbers differ or because the forward gives
  // other results each time.
  std::vector<at::Tensor> run(const std::function<std::vector<at::Tensor>()>& forward) const;

 private:
  // The sum of each of up to 509 interleaved parts of the elements, and the norm of all elements.
  struct Summary {
    at::Tensor sums, norm;  // undefined: not compared
    double tolerance = 0;
  };
  static Summary summary_of(const at::Tensor& output);

  const GeneratorStates before_, restored_;
  std::optional<GeneratorStates> after_;  // empty: nothing was drawn during the first run
  std::vector<Summary> summaries_;
};

}  // namespace weft::dist_autograd
