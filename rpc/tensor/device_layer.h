// The device layer: tensors on accelerators in calls, by the device maps of the agent (device_options.h).
//
// Part of tensor::layers(). A request to a peer for which the caller has a map states that map in its section
// "devices"; the callee copies arguments to its devices on streams of the call (call_streams.h), under which
// its handler runs, and sends results by the inverse. The caller's results arrive on the streams that were
// current where it made the call, so that what it does with them there comes after; other streams have to
// wait for those, as between any two streams. No step waits for a whole device. A call to a peer with a map
// is made once: it has no retries (retry.h).
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/device_options.h>

#include <ATen/core/Tensor.h>

namespace weft::tensor {

// The key of the section in a message.
inline constexpr std::string_view devices_section = "devices";

// Part of tensor::layers().
void add_device_layer(rpc::Agent& agent, DeviceOptions options);

// Stands before the arguments of a call, whose tensors then go by this map, whatever the agent's options say;
// for layers that send something back. An empty map changes nothing.
class WEFT_EXPORT ByDeviceMap final : public rpc::CallModifier {
 public:
  explicit ByDeviceMap(DeviceMap map) : map_(std::move(map)) {}
  void apply(rpc::OutgoingCall& call) const override;

 private:
  DeviceMap map_;
};

// By which tensors go back to the sender of a message that came in; empty: it came without a map. Once the
// parts of the call have read the message.
WEFT_EXPORT DeviceMap device_map_back(rpc::IncomingMessage& message);

// Of a call that is served, one for each device that it may use; its result is copied from there.
WEFT_EXPORT std::vector<c10::Stream> call_streams(rpc::CallContext& call);
// For a handler that hands its arguments to other threads: blocks until those that are on accelerators have
// arrived there.
WEFT_EXPORT void wait_for_arguments(rpc::CallContext& call);
// On such a thread: its current streams use these tensors, whose memory is not reused before.
WEFT_EXPORT void use_on_current_streams(const std::vector<at::Tensor>& tensors);

}  // namespace weft::tensor
