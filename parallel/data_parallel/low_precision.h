// LowPrecision: narrower copies of parameters, in which a module computes forward and backward.
//
// A module has its parameters as members, which cannot be exchanged from outside. So the copies take the
// place of the parameters' data while forward runs, and again while backward runs, which reads the tensors
// that forward has saved. At other times the parameters have their own data: for the optimizer, checkpoints
// and collectives.
//
// A parameter that requires grad has another accumulator (a node of LibTorch's graphs) for its copy. It
// writes the narrow gradient to `.grad`, or adds it to a gradient of the parameter's own type; its user
// converts the former.
//
// If a loss uses a parameter itself, its backward runs before that of the module only if it was computed
// after forward: a loss that was computed before may use the rounded values.
//
// Owned by a Replica. Thread-safe as far as the threads of one backward need it. Forwards and backwards of
// one module do not run at the same time.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT LowPrecision : public std::enable_shared_from_this<LowPrecision> {
 public:
  // Autograd's node that adds to a leaf's gradient.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

  // Parameters of other types than floating-point ones keep their data.
  LowPrecision(std::vector<at::Tensor> parameters, at::ScalarType dtype);
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  at::ScalarType dtype() const { return dtype_; }  // of the copies
  // The accumulator for the copy of a parameter. Null: the parameter has no copy, or needs no gradient.
  Accumulator accumulator(const at::Tensor& parameter) const;

  // While it lives, the parameters have the data of new copies. of: null does nothing.
  class WEFT_EXPORT Forward {
   public:
    explicit Forward(LowPrecision* of);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    LowPrecision* const of_;
  };

  // An output of forward: from its node until the end of backward, the parameters have the data of the
  // copies.
  void watch(const at::Tensor& output);
  // The parameters have their own data again. More than once does nothing.
  void leave();

 private:
  struct Parameter {
    at::Tensor tensor;
    Accumulator accumulator = {};  // for the copy
    at::Tensor copy = {};
    // While the copy is in use.
    at::Tensor own = {};
    Accumulator own_accumulator = {};
  };
  bool enter(bool with_new_copies);
  void enter_backward();

  const at::ScalarType dtype_;
  rpc::Mutex mutex_;  // guards copy, own and own_accumulator of each parameter, too
  bool entered_ WEFT_GUARDED_BY(mutex_) = false;
  std::vector<Parameter> parameters_;
};

}  // namespace weft::data_parallel
