// The identity, whose backward fails.
#pragma once

#include <torch/torch.h>

#include <stdexcept>

namespace weft::dist_autograd::test {

struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x * 1; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("backward failed on purpose");
  }
};

}  // namespace weft::dist_autograd::test
