// An optimizer of weft and the optimizer of LibTorch with the same options.
#pragma once

#include <weft/dist_optim/local/optimizer_spec.h>

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace weft::dist_optim {

struct Case {
  OptimizerSpec spec;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> reference;
};

template <class Optimizer, class Options>
Case make_case(const Options& options) {
  return {options, [options](std::vector<at::Tensor> parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

}  // namespace weft::dist_optim
