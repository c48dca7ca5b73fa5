// SentValues: the values of an edge, copied to host memory to send them to another process. Plain data.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <utility>
#include <vector>

namespace weft::pipeline {

struct SentValues {
  Values values;
  std::vector<bool> requires_grad;  // for each value: whether the sender needs the value's gradient

  static SentValues of(const Values& values) {
    SentValues sent;
    for (const at::Tensor& value : values) {
      sent.requires_grad.push_back(value.defined() && value.requires_grad());
      sent.values.push_back(value.defined() ? value.detach().cpu() : value);
    }
    return sent;
  }
  bool has(std::size_t count) const { return values.size() == count && requires_grad.size() == count; }
  // Call it only if has() is true. Returns the values, with requires_grad set.
  Values take() && {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (requires_grad[i]) values[i].set_requires_grad(true);
    return std::move(values);
  }
};
WEFT_CODEC(SentValues, values, requires_grad)

}  // namespace weft::pipeline
