// StepError: the error of a step that did not change all its objects. It lists the objects that stepped.
// Thread-safety: a value.
//
// Its kind is the kind of the first failure. Objects are numbered in the order of the DistributedOptimizer's
// modules. If stepped() and unknown() are empty, nothing has changed and the passes may step again. Otherwise
// the objects may have made different numbers of steps: the program loads a checkpoint or continues with
// these parameters.
#pragma once

#include <weft/rpc/core/error.h>

#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT StepError : public rpc::Error {
 public:
  using Objects = std::vector<std::size_t>;
  StepError(rpc::ErrorKind kind, const std::string& message, Objects stepped, Objects not_stepped,
            Objects unknown)
      : rpc::Error(kind, message),
        stepped_(std::move(stepped)),
        not_stepped_(std::move(not_stepped)),
        unknown_(std::move(unknown)) {}

  const Objects& stepped() const { return stepped_; }
  const Objects& not_stepped() const { return not_stepped_; }  // unchanged objects
  // Objects whose owners were lost with the step in flight, or on which LibTorch failed during the step.
  const Objects& unknown() const { return unknown_; }

 private:
  Objects stepped_, not_stepped_, unknown_;
};

}  // namespace weft::dist_optim
