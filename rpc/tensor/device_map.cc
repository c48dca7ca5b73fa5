#include <weft/rpc/tensor/device_map.h>

#include <weft/rpc/core/error.h>

#include <c10/util/Exception.h>

namespace weft::tensor {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "device map: " + what);
}

// The CPU has one name, whatever its index.
c10::Device checked(c10::Device device) {
  if (device.is_cpu()) return c10::Device(c10::kCPU);
  if (device.is_meta()) refuse("tensors on the meta device have no elements to send");
  if (!device.has_index())
    refuse("'" + device.str() + "' has no index, expected for example '" + device.str() + ":0'");
  return device;
}

}  // namespace

c10::Device device_from_name(std::string_view name) {
  try {
    const c10::Device device{std::string(name)};
    // LibTorch stores an index in 8 bits and drops the rest.
    if (!device.is_cpu() && device.has_index() && !name.ends_with(":" + std::to_string(device.index())))
      refuse("'" + std::string(name) + "' is not a device: its index is out of range, expected at most 127");
    return checked(device);
  } catch (const c10::Error& error) {
    refuse("'" + std::string(name) + "' is not a device: " + error.what_without_backtrace());
  }
}

DeviceMap::DeviceMap(std::initializer_list<std::pair<std::string, std::string>> pairs) {
  for (const auto& [here, there] : pairs) add_named(here, there);
}

DeviceMap& DeviceMap::add(c10::Device here, c10::Device there) {
  const Pair pair{checked(here), checked(there)};
  for (const Pair& known : pairs_) {
    if (known == pair) return *this;
    if (known.here == pair.here)
      refuse("one device to two: " + known.here.str() + " to " + known.there.str() + " and to " +
             pair.there.str());
    if (known.there == pair.there)
      refuse("two devices to one: " + known.here.str() + " and " + pair.here.str() + " to " +
             pair.there.str() + ", which has no inverse for results");
  }
  pairs_.push_back(pair);
  return *this;
}

DeviceMap& DeviceMap::add_named(std::string_view here, std::string_view there) {
  return add(device_from_name(here), device_from_name(there));
}

std::optional<c10::Device> DeviceMap::find(c10::Device here) const {
  for (const Pair& pair : pairs_)
    if (pair.here == here || (pair.here.is_cpu() && here.is_cpu())) return pair.there;
  if (here.is_cpu()) return here;
  return std::nullopt;
}

DeviceMap DeviceMap::inverse() const {
  DeviceMap inverse;
  for (const Pair& pair : pairs_) inverse.pairs_.push_back({pair.there, pair.here});
  return inverse;
}

std::map<std::string, std::string> DeviceMap::names() const {
  std::map<std::string, std::string> names;
  for (const Pair& pair : pairs_) names.emplace(pair.here.str(), pair.there.str());
  return names;
}

DeviceMap DeviceMap::of(const std::map<std::string, std::string>& names) {
  DeviceMap map;
  for (const auto& [here, there] : names) map.add_named(here, there);
  return map;
}

}  // namespace weft::tensor
