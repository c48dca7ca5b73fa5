// KeptBuffers: copies of a module's buffers, from which restore() undoes the changes of a forward that is
// recomputed or measured. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace weft::pipeline {

class KeptBuffers {
 public:
  explicit KeptBuffers(const torch::nn::Module& module);
  // Sets the buffers to the copies. failed_precondition: the shape of a buffer has changed.
  void restore() const;

 private:
  struct BufferCopy {
    at::Tensor buffer, before;
    std::uint32_t version;
  };
  std::vector<BufferCopy> buffers_;
};

}  // namespace weft::pipeline
