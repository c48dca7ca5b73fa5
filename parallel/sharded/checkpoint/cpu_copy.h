// CpuCopy: a copy of a rank's state in host memory. The memory is kept for the next copy.
//
// Tensors of an accelerator are copied into pinned memory. Thread-safety: one thread at a time.
#pragma once

#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/rpc/core/export.h>

#include <map>
#include <string>

namespace weft::sharded {

class WEFT_EXPORT CpuCopy {
 public:
  // Returns when all tensors are copied. invalid_argument, which names the tensor: its values are not dense,
  // or do not have one dimension. Also throws the accelerator's errors.
  void copy(const std::map<std::string, SlicedTensor>& tensors);

  const std::map<std::string, SlicedTensor>& tensors() const { return tensors_; }  // of the last copy

 private:
  std::map<std::string, SlicedTensor> tensors_;
};

}  // namespace weft::sharded
