// LowPrecision: narrower copies of parameters, in which a module computes forward and backward.
//
// The parameters are members of the module and cannot be exchanged from outside. So the copies take the
// place of the parameters' data while forward runs, and again while backward runs, because backward reads the
// tensors that forward has saved. At other times the parameters have their own data: for the optimizer,
// checkpoints and collectives.
//
// A parameter that requires grad has a second accumulator (a node of LibTorch's graphs), for its copy. This
// accumulator writes the narrow gradient to `.grad`, or adds it to a gradient of the parameter's own type.
// The Reducer converts a narrow gradient in `.grad` to the parameter's type.
//
// A term of the loss may use a parameter directly. If the term was computed after forward, its backward runs
// before the backward of the module, while the parameters have their own data. If the term was computed
// before forward, its backward may use the rounded values.
//
// Owned by a Replica. The threads of one backward may use it at the same time. Forwards and backwards of one
// module do not run at the same time.
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

  // Parameters that are not of a floating-point type keep their data.
  LowPrecision(std::vector<at::Tensor> parameters, at::ScalarType dtype);
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  at::ScalarType dtype() const { return dtype_; }  // the type of the copies
  // The accumulator for the copy of a parameter. Null: the parameter has no copy, or needs no gradient.
  Accumulator accumulator(const at::Tensor& parameter) const;
  // Creates the accumulators for the copies of parameters that have begun to require grad. Call it while the
  // parameters have their own data.
  void add_accumulators();

  // While this object exists, the parameters have the data of new copies. If `of` is null, this object has no
  // effect.
  class WEFT_EXPORT Forward {
   public:
    explicit Forward(LowPrecision* of);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    LowPrecision* const of_;
  };

  // output: an output of forward. When backward reaches the output, the parameters get the data of the
  // copies, until the end of backward.
  void watch(const at::Tensor& output);
  // Gives the parameters their own data again. No effect if they already have their own data.
  void leave();

 private:
  struct Parameter {
    at::Tensor tensor;
    Accumulator accumulator = {};  // for the copy
    at::Tensor copy = {};
    // Set while the copy is in use.
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
