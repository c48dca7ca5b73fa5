// DeviceOptions: the accelerators that an agent uses, and the device maps for its peers; the argument of
// tensor::layers().
//
//   tensor::DeviceOptions devices;
//   devices.map("worker1", {{"cuda:0", "cuda:1"}});
//   rpc::Agent agent{options, tensor::layers(devices)};
//
// Arguments use the map for the callee, and results use the inverse of this map. A gradient uses the map of
// its tensor in the reverse direction. A call with a tensor on a device that the map does not name fails at
// once with failed_precondition. A peer needs a map only to make calls with tensors on accelerators, not to
// be called. Thread-safety: a value.
#pragma once

#include <weft/rpc/tensor/device_map.h>

namespace weft::tensor {

struct WEFT_EXPORT DeviceOptions {
  // The maps by the peer's name. A peer that was looked up by address has this address as its name until the
  // first connection: await peer.ready() before the first call with tensors. In a job of a fixed world,
  // wait_for() fails if `maps` contains a name that no member has.
  std::map<std::string, DeviceMap> maps;
  DeviceMap others;  // for peers that `maps` does not name
  // The devices that calls may use; empty: all devices of the process. Maps that use other devices are
  // refused.
  std::vector<c10::Device> devices;

  // Adds pairs to the peer's map. Errors: as DeviceMap::add.
  DeviceOptions& map(const std::string& peer, const DeviceMap& more);
};

// The checked options of one agent. Immutable and thread-safe.
class WEFT_EXPORT AgentDevices {
 public:
  // invalid_argument: a local device of a map does not exist or is not among `devices`, or one of `devices`
  // does not exist.
  explicit AgentDevices(DeviceOptions options);

  bool maps() const;  // whether any map exists
  // The peer's own map. If the peer has none, the map for all other peers.
  const DeviceMap& map_for(const std::string& peer) const;
  // invalid_argument: a map is for a name that is not among `members`. Peers that are known by address are
  // ignored.
  void check_names(const std::vector<std::string>& members) const;
  // The accelerators that the agent's options name.
  const std::vector<c10::Device>& accelerators() const { return accelerators_; }
  // Throws invalid_argument if the device does not exist or is not among the agent's devices. The message
  // begins with `whose`.
  void check(c10::Device device, const std::string& whose) const;

 private:
  void use(c10::Device device);
  DeviceOptions options_;
  std::vector<c10::Device> accelerators_;
};

}  // namespace weft::tensor
