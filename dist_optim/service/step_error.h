// StepError: a step that did not happen on all objects, with the objects that stepped. Thread-safety: a
// value.
//
// Its kind is that of the first failure. Objects are numbered in the order of the DistributedOptimizer's
// modules. If stepped() and unknown() are empty, nothing has changed and the passes may step again. Otherwise
// the modules' parameters are those of different steps, and training continues from a checkpoint or as it is.
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
  const Objects& not_stepped() const { return not_stepped_; }  // nothing has changed there
  // Their owners were lost with the step in flight, or LibTorch failed in the middle of it.
  const Objects& unknown() const { return unknown_; }

 private:
  Objects stepped_, not_stepped_, unknown_;
};

}  // namespace weft::dist_optim
