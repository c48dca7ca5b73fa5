#include <weft/dist_autograd/engine/internal/node_streams.h>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>

namespace weft::dist_autograd::detail {
namespace {

c10::Stream current_stream_on(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// LibTorch 2.15 may move a node off a stream that must not take part in a CUDA graph's capture; older
// versions cannot.
template <class Buffer>
std::optional<c10::Stream> overridden_stream(const Buffer& buffer) {
  if constexpr (requires { buffer.opt_overridden_consumer_stream; }) {
    return buffer.opt_overridden_consumer_stream;
  } else {
    return std::nullopt;
  }
}

}  // namespace

std::optional<c10::Stream> forward_stream(torch::autograd::Node& node) {
  // Node::stream first queries the process's accelerator. This costs more than a check that all tensors are
  // on the CPU.
  return node.device().is_cpu() ? std::nullopt : node.stream();
}

std::optional<c10::Stream> current_stream(const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.is_cpu()) return std::nullopt;
  const auto accelerator = at::getAccelerator();
  if (!accelerator || gradient.device().type() != *accelerator) return std::nullopt;
  return current_stream_on(gradient.device());
}

std::optional<c10::Stream> enter_stream(torch::autograd::Node& node, torch::autograd::InputBuffer& buffer) {
  auto stream = overridden_stream(buffer);
  if (!stream) stream = forward_stream(node);
  for (std::size_t i = 0; i < buffer.ready_events.size(); ++i) {
    if (!buffer.ready_events[i] || !buffer.buffer[i].defined()) continue;
    const auto wait = [&](const c10::Stream& consumer) {
      if (buffer.ready_streams[i] != consumer) consumer.wait(*buffer.ready_events[i]);
    };
    if (stream) wait(*stream);
    // The node uses a gradient of another device on that device's current stream.
    const c10::Device device = buffer.buffer[i].device();
    if (!stream || stream->device() != device) wait(current_stream_on(device));
  }
  return stream;
}

void LeafStreams::join() {
  for (const c10::Stream& leaf : streams_) {
    const c10::Stream current = current_stream_on(leaf.device());
    if (current == leaf) continue;
    c10::Event done(leaf.device_type());
    done.record(leaf);
    current.wait(done);
  }
  streams_.clear();
}

}  // namespace weft::dist_autograd::detail
