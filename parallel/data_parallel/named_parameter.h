// NamedParameter: a parameter, with its name in the module.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace weft::data_parallel {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are sparse tensors
};

}  // namespace weft::data_parallel
