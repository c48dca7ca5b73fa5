// Streams of a backward on an accelerator; on CPU these functions have no effect.
//
// A node runs on the stream of its forward. InputBuffer::add records an event when each gradient is ready.
// The node's stream waits for these events before the node runs. At the end, the caller's streams wait for
// the streams on which leaves ran. Used by NodeExecutor only, on the thread that runs the nodes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <optional>
#include <unordered_set>

namespace weft::dist_autograd::detail {

// The stream on which `node`'s forward ran, if it ran on an accelerator.
std::optional<c10::Stream> forward_stream(torch::autograd::Node& node);

// The calling thread's current stream for the device of a gradient that arrives from outside.
std::optional<c10::Stream> current_stream(const at::Tensor& gradient);

// Returns the stream on which `node` runs with the gradients in `buffer`, after making that stream wait for
// the gradients.
std::optional<c10::Stream> enter_stream(torch::autograd::Node& node, torch::autograd::InputBuffer& buffer);

// The streams on which a backward ended.
class LeafStreams {
 public:
  void add(const std::optional<c10::Stream>& stream) {
    if (stream) streams_.insert(*stream);
  }
  // Makes the calling thread's current streams wait for all added streams.
  void join();

 private:
  std::unordered_set<c10::Stream> streams_;
};

}  // namespace weft::dist_autograd::detail
