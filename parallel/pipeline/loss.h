// Loss: the function that a pipeline's last stage applies to its outputs and the targets.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <functional>
#include <utility>

namespace weft::pipeline {

// Returns the loss of a micro-batch, a scalar, for the last stage's outputs and the micro-batch's targets.
using Loss = std::function<at::Tensor(const Values& outputs, const Values& targets)>;
// For a stage with one output and one target: loss_of([](auto output, auto target) { return mse_loss(output,
// target); }).
template <class F>
Loss loss_of(F f) {
  return [f = std::move(f)](const Values& outputs, const Values& targets) {
    return f(outputs.at(0), targets.at(0));
  };
}

}  // namespace weft::pipeline
