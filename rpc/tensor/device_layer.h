// The device layer: tensors on accelerators in calls, according to the agent's device maps
// (device_options.h).
//
// Part of tensor::layers(). If the caller has a map for the peer, its request contains the map in the section
// "devices". The callee copies arguments to its devices on streams of the call (call_streams.h), which are
// current while its handler runs, and sends results by the inverse map. The caller's results arrive on the
// streams that were current when it made the call, so later work on these streams may use them. A program
// that uses the results on other streams makes these streams wait first, as between any two streams. No step
// waits for a whole device. A call to a peer with a map has no retries (retry.h).
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/device_options.h>

#include <ATen/core/Tensor.h>

namespace weft::tensor {

// The key of the section in a message.
inline constexpr std::string_view devices_section = "devices";

// Part of tensor::layers().
void add_device_layer(rpc::Agent& agent, DeviceOptions options);

// A modifier for a call by which a layer sends data back, such as gradients. The tensors of the arguments use
// this map instead of the map in the agent's options. An empty map has no effect.
class WEFT_EXPORT ByDeviceMap final : public rpc::CallModifier {
 public:
  explicit ByDeviceMap(DeviceMap map) : map_(std::move(map)) {}
  void apply(rpc::OutgoingCall& call) const override;

 private:
  DeviceMap map_;
};

// The map for sending tensors back to the sender of a received message; empty if the message had no map. Call
// it after every rpc::CallPart of the call has read the message.
WEFT_EXPORT DeviceMap device_map_back(rpc::IncomingMessage& message);

// The streams of a served call, one for each device that the call may use. The result of the call is copied
// on these streams.
WEFT_EXPORT std::vector<c10::Stream> call_streams(rpc::CallContext& call);
// For a handler that passes its arguments to other threads: blocks until all copies of arguments to
// accelerators are complete.
WEFT_EXPORT void wait_for_arguments(rpc::CallContext& call);
// For a thread that received arguments from a handler; call it on that thread. After the call, the memory of
// these tensors is reused only when the thread's current streams have finished with it.
WEFT_EXPORT void use_on_current_streams(const std::vector<at::Tensor>& tensors);

}  // namespace weft::tensor
