// DeviceMap: pairs of a local and a remote device. A tensor on a local device is sent to the remote device at
// the peer. Each device is in at most one pair, so that the map has an inverse.
//
//   tensor::DeviceMap{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}
//
// Devices have LibTorch's names, accelerators with their index. The CPU may be mapped, too; without a pair,
// it is mapped to the peer's CPU. Thread-safety: a value. Modeled on the device maps of
// torch.distributed.rpc.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/Device.h>

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tensor {

// "cpu", "cuda:1". Throws invalid_argument for an unknown name, an accelerator without an index, or "meta".
WEFT_EXPORT c10::Device device_from_name(std::string_view name);

class WEFT_EXPORT DeviceMap {
 public:
  // A device of this agent, and the device at the peer.
  struct Pair {
    c10::Device here, there;
    friend bool operator==(const Pair&, const Pair&) = default;
  };

  DeviceMap() = default;
  // pairs: names of local and remote devices. Errors: as add_named().
  DeviceMap(std::initializer_list<std::pair<std::string, std::string>> pairs);

  // Add a pair. Throw invalid_argument if either device is in another pair already. Adding the same pair
  // again has no effect.
  DeviceMap& add(c10::Device here, c10::Device there);
  DeviceMap& add_named(std::string_view here, std::string_view there);

  // The pairs, in the order in which they were added.
  bool empty() const { return pairs_.empty(); }
  const std::vector<Pair>& pairs() const { return pairs_; }
  // The remote device for tensors on this device. nullopt: the map does not name this device.
  std::optional<c10::Device> find(c10::Device here) const;
  DeviceMap inverse() const;

  // The form in messages: the names of remote devices by the names of local devices.
  std::map<std::string, std::string> names() const;
  static DeviceMap of(const std::map<std::string, std::string>& names);

  friend bool operator==(const DeviceMap&, const DeviceMap&) = default;

 private:
  std::vector<Pair> pairs_;
};

}  // namespace weft::tensor
