// HostState: a copy of a rank's state in host memory, which is kept for the next copy.
//
// Tensors of an accelerator are copied into pinned memory. Thread-safety: one thread at a time.
#pragma once

#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/rpc/core/export.h>

#include <map>
#include <string>

namespace weft::sharded {

class WEFT_EXPORT HostState {
 public:
  // Returns when all is copied. invalid_argument, naming the tensor, where its values are not dense, or not
  // of one dimension. Throws what the accelerator throws.
  void copy(const std::map<std::string, SlicedTensor>& tensors);

  const std::map<std::string, SlicedTensor>& tensors() const { return tensors_; }  // of the last copy

 private:
  std::map<std::string, SlicedTensor> tensors_;
};

}  // namespace weft::sharded
