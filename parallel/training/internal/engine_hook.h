// call_before: sets a function that LibTorch's engine calls before it runs a node of a graph.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

namespace weft::training {

// The engine calls f on its thread before each run of the node, as long as the node exists.
template <class F>
void call_before(torch::autograd::Node& node, F f) {
  class Hook final : public torch::autograd::FunctionPreHook {
   public:
    explicit Hook(F f) : f_(std::move(f)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      f_();
      return gradients;
    }

   private:
    F f_;
  };
  node.add_pre_hook(std::make_unique<Hook>(std::move(f)));
}

}  // namespace weft::training
