// TensorHook: sees every tensor of a message. Distributed autograd has one: it records the tensors that are
// sent, and connects received tensors to the graph.
//
// A layer puts it into the slots of a message before the values are encoded or decoded. Only the thread that
// encodes or decodes uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace weft::tensor {

class TensorHook {
 public:
  virtual ~TensorHook() = default;

  // The replacement of a tensor that is sent.
  struct SentTensor {
    at::Tensor tensor;                  // sent instead of the original, without its graph
    std::optional<std::uint64_t> mark;  // sent with the tensor, and passed to received() on the other side
  };
  // sending(): called once for each tensor, in the order of encoding. received(): called for a tensor that
  // was sent with a mark; returns the tensor for the program.
  virtual SentTensor sending(const at::Tensor& tensor) = 0;
  virtual at::Tensor received(at::Tensor tensor, std::uint64_t mark) = 0;
};

// If a WithGrad is in the slots of a served call, the handler runs with grad mode on. Otherwise the handler
// runs under no-grad.
struct WithGrad {};

}  // namespace weft::tensor
