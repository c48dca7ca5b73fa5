// TensorHook: sees every tensor that a message carries. Distributed autograd is one: it records what is sent
// and joins what is received to the graph.
//
// Put into the slots of a message before its values are encoded or decoded; used by that thread alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace weft::tensor {

class TensorHook {
 public:
  virtual ~TensorHook() = default;

  struct Sent {
    at::Tensor tensor;                  // what travels, detached
    std::optional<std::uint64_t> mark;  // travels beside it and comes to received()
  };
  virtual Sent sending(const at::Tensor& tensor) = 0;
  virtual at::Tensor received(at::Tensor tensor, std::uint64_t mark) = 0;
};

// In the slots of a call that is served: its handler runs with grad mode on. Without, handlers run under
// no-grad.
struct WithGrad {};

}  // namespace weft::tensor
