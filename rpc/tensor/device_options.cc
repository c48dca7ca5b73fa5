#include <weft/rpc/tensor/device_options.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/address.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

namespace weft::tensor {
namespace {

int devices_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

}  // namespace

DeviceOptions& DeviceOptions::map(const std::string& peer, const DeviceMap& more) {
  for (const DeviceMap::Pair& pair : more.pairs()) maps[peer].add(pair.here, pair.there);
  return *this;
}

AgentDevices::AgentDevices(DeviceOptions options) : options_(std::move(options)) {
  for (c10::Device& device : options_.devices) device = device_from_name(device.str());
  for (const c10::Device device : options_.devices) {
    check(device, "the devices of this agent");
    use(device);
  }
  const auto take = [&](const DeviceMap& map, const std::string& whose) {
    for (const DeviceMap::Pair& pair : map.pairs()) {
      check(pair.here, whose);
      use(pair.here);
    }
  };
  for (const auto& [peer, map] : options_.maps) take(map, "the device map for '" + peer + "'");
  take(options_.others, "the device map for other peers");
}

bool AgentDevices::maps() const { return !options_.maps.empty() || !options_.others.empty(); }

const DeviceMap& AgentDevices::map_for(const std::string& peer) const {
  const auto found = options_.maps.find(peer);
  return found == options_.maps.end() ? options_.others : found->second;
}

void AgentDevices::check_names(const std::vector<std::string>& members) const {
  for (const auto& [peer, map] : options_.maps)
    if (!rpc::Address::looks_like(peer) && std::find(members.begin(), members.end(), peer) == members.end())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "a device map for '" + peer + "', but no member of this job has that name");
}

void AgentDevices::check(c10::Device device, const std::string& whose) const {
  if (device.is_cpu()) return;
  const int count = devices_of(device.type());
  if (device.index() >= count)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        whose + " names " + device.str() + ", but this host has " + std::to_string(count) + " such devices");
  const auto& ours = options_.devices;
  if (!ours.empty() && std::find(ours.begin(), ours.end(), device) == ours.end())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     whose + " names " + device.str() + ", which is not among the devices of this agent");
}

void AgentDevices::use(c10::Device device) {
  if (device.is_cpu() || std::find(accelerators_.begin(), accelerators_.end(), device) != accelerators_.end())
    return;
  accelerators_.push_back(device);
}

}  // namespace weft::tensor
