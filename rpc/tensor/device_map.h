// DeviceMap: where tensors of this agent's devices are put at a peer: pairs of a device here and a device
// there, each device in one pair at the most, so that the map has an inverse.
//
//   tensor::DeviceMap{{"cuda:0", "cuda:1"}, {"cuda:1", "cuda:0"}}
//
// Devices are named as LibTorch names them, accelerators with their index. The CPU may be mapped like any
// other; unmapped, it is the CPU there. Thread-safety: a value. After torch.distributed.rpc's device maps.
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

// "cpu", "cuda:1"; invalid_argument where that names no device, an accelerator without an index, or "meta".
WEFT_EXPORT c10::Device device_from_name(std::string_view name);

class WEFT_EXPORT DeviceMap {
 public:
  // A device of this agent, and its device at the peer.
  struct Pair {
    c10::Device here, there;
    friend bool operator==(const Pair&, const Pair&) = default;
  };

  DeviceMap() = default;
  // Names of devices here and there. Errors: those of add_named().
  DeviceMap(std::initializer_list<std::pair<std::string, std::string>> pairs);

  // invalid_argument: either device is in another pair already. The same pair again is nothing.
  DeviceMap& add(c10::Device here, c10::Device there);
  DeviceMap& add_named(std::string_view here, std::string_view there);

  // The pairs, in the order in which they were added.
  bool empty() const { return pairs_.empty(); }
  const std::vector<Pair>& pairs() const { return pairs_; }
  // None: a tensor there has no place at the peer.
  std::optional<c10::Device> find(c10::Device here) const;
  DeviceMap inverse() const;

  // As it travels: the names there by the names here.
  std::map<std::string, std::string> names() const;
  static DeviceMap of(const std::map<std::string, std::string>& names);

  friend bool operator==(const DeviceMap&, const DeviceMap&) = default;

 private:
  std::vector<Pair> pairs_;
};

}  // namespace weft::tensor
