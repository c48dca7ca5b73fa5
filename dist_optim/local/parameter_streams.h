// ParameterStreams: orders the uses of one object's parameters on accelerators. Each use waits, on the
// current streams of its thread, for earlier uses.
//
// Owner: OwnedParameters. Thread-safe. If no parameter is on an accelerator, it has no effect.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/tensor/on_streams.h>

#include <algorithm>
#include <vector>

namespace weft::dist_optim {

class ParameterStreams {
 public:
  explicit ParameterStreams(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters)
      if (!parameter.tensor.is_cpu() && !has_one_of(parameter.tensor.device()))
        on_devices_.push_back(parameter.tensor);
  }

  // A use begins on the calling thread.
  void follow() {
    if (on_devices_.empty()) return;
    rpc::MutexLock lock(mutex_);
    for (const at::Tensor& parameter : on_devices_) used_.pass_on(parameter);
  }
  // A use ends on the calling thread. Uses may overlap. So the streams of this use also wait for the use that
  // ended last; then one mark represents both uses.
  void note() {
    if (on_devices_.empty()) return;
    follow();
    rpc::MutexLock lock(mutex_);
    used_ = {};
    for (const at::Tensor& parameter : on_devices_) used_.note(parameter);
  }

 private:
  bool has_one_of(c10::Device device) const {
    return std::any_of(on_devices_.begin(), on_devices_.end(),
                       [&](const at::Tensor& one) { return one.device() == device; });
  }

  std::vector<at::Tensor> on_devices_;  // one parameter of each accelerator device
  rpc::Mutex mutex_;
  tensor::StreamMarks used_ WEFT_GUARDED_BY(mutex_);  // the positions of the streams after the last use
};

}  // namespace weft::dist_optim
