// GeneratorStates: the random generators that a forward can draw from, so that it can run again with the same
// numbers.
//
// These are the generators of the process, of the tensors' devices, and of the program. During a run, no
// other thread may draw from them. Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT GeneratorStates {
 public:
  // The current states. tensors: the tensors that the forward uses. others: generators of the program.
  static GeneratorStates of(const std::vector<at::Tensor>& tensors,
                            const std::vector<at::Generator>& others = {});
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

}  // namespace weft::dist_autograd
