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

  // What is sent in place of a tensor.
  struct Sent {
    at::Tensor tensor;                  // what travels, detached
    std::optional<std::uint64_t> mark;  // travels beside it and comes to received()
  };
  // sending(): once for each tensor, in the order of encoding. received(): for a tensor that was sent with a
  // mark; returns the tensor that the program gets.
  virtual Sent sending(const at::Tensor& tensor) = 0;
  virtual at::Tensor received(at::Tensor tensor, std::uint64_t mark) = 0;
};

// In the slots of a call that is served: its handler runs with grad mode on. Without, handlers run under
// no-grad.
struct WithGrad {};

}  // namespace weft::tensor
