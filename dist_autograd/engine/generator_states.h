// GeneratorStates: the random generators that a forward can draw from, so that it can run again with the same
// numbers.
//
// They are those of the process and of the inputs' devices: other threads must not draw from them between the
// first run and the end of a later one. Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT GeneratorStates {
 public:
  // The states as they are.
  static GeneratorStates of(const std::vector<at::Tensor>& inputs);
  GeneratorStates now() const;  // of the same generators
  void restore() const;
  friend WEFT_EXPORT bool operator==(const GeneratorStates& a, const GeneratorStates& b);

 private:
  void add(at::Generator generator);
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// While it lives, draws give what they gave from `states` on. Then the generators go on where they were.
class DrawsAgain {
 public:
  explicit DrawsAgain(const GeneratorStates& states) : now_(states.now()) { states.restore(); }
  ~DrawsAgain() { now_.restore(); }
  DrawsAgain(const DrawsAgain&) = delete;
  DrawsAgain& operator=(const DrawsAgain&) = delete;

 private:
  const GeneratorStates now_;
};

}  // namespace weft::dist_autograd
