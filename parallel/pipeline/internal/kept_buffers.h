// KeptBuffers: the buffers of a module, so that a forward that runs again, or for a measurement, does not
// change them. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace weft::pipeline {

class KeptBuffers {
 public:
  explicit KeptBuffers(const torch::nn::Module& module);
  // failed_precondition: a buffer has another shape.
  void restore() const;

 private:
  struct Kept {
    at::Tensor buffer, before;
    std::uint32_t version;
  };
  std::vector<Kept> buffers_;
};

}  // namespace weft::pipeline
