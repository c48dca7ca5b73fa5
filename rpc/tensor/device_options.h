// DeviceOptions: which devices of accelerators an agent's tensors live on, and where they are put at its
// peers; given to the layers of an agent.
//
//   tensor::DeviceOptions devices;
//   devices.map("worker1", {{"cuda:0", "cuda:1"}});
//   rpc::Agent agent{options, tensor::layers(devices)};
//
// Arguments go by the map for the callee, results come back by its inverse, gradients go the way of their
// tensors backwards; a tensor on a device that the map does not name is failed_precondition, at once. A peer
// needs no map to be called, only one to make calls with tensors on accelerators itself. Thread-safety: a
// value.
#pragma once

#include <weft/rpc/tensor/device_map.h>

namespace weft::tensor {

struct WEFT_EXPORT DeviceOptions {
  // By the peer's name. One that was asked for by its address has that as its name until it has first been
  // connected to: await peer.ready() before its first call with tensors. In a job of fixed size, wait_for()
  // fails where no member has the name.
  std::map<std::string, DeviceMap> maps;
  DeviceMap others;  // for peers that `maps` does not name
  // What calls may use here; empty: every device of the process. A map from, or a peer's map to, another one
  // is refused.
  std::vector<c10::Device> devices;

  // Adds to the peer's map; invalid_argument as DeviceMap::add.
  DeviceOptions& map(const std::string& peer, const DeviceMap& more);
};

// The options of one agent, checked. Thread-safe: never changed.
class WEFT_EXPORT AgentDevices {
 public:
  // invalid_argument: a map is from a device that does not exist here, or that is not among `devices`; one of
  // `devices` does not exist.
  explicit AgentDevices(DeviceOptions options);

  bool maps() const;                                        // it has any
  const DeviceMap& map_for(const std::string& peer) const;  // or the map for all other peers
  // invalid_argument: a map is for a name that none of these has. Peers by their address are not asked for.
  void check_names(const std::vector<std::string>& members) const;
  // The accelerators' devices that this agent's own options name.
  const std::vector<c10::Device>& accelerators() const { return accelerators_; }
  // invalid_argument, which begins with `whose`: it does not exist, or is not among the agent's.
  void check(c10::Device device, const std::string& whose) const;

 private:
  void use(c10::Device device);
  DeviceOptions options_;
  std::vector<c10::Device> accelerators_;
};

}  // namespace weft::tensor
