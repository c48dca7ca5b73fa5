#include <weft/rpc/tensor/device_layer.h>

#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/tensor/call_streams.h>
#include <weft/rpc/tensor/device_slots.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace weft::tensor {
namespace {

using Names = std::map<std::string, std::string>;

// In the slots of a served call.
struct ServedDevices {
  std::shared_ptr<CallStreams> streams;
  DeviceMap back;  // to the caller's devices
};

// The callee's part: the reply uses the inverse map.
class ReplyPart final : public rpc::CallPart {
 public:
  ReplyPart(std::shared_ptr<ServedDevices> served, std::string caller)
      : served_(std::move(served)), caller_(std::move(caller)) {}

  void write(rpc::OutgoingMessage& message) override {
    reply_ = std::make_shared<OutgoingDevices>(
        OutgoingDevices{served_->back, caller_, served_->streams->streams(), {}, false});
    message.slots().put(reply_);
  }
  void seal(rpc::OutgoingMessage&) override { reply_->copies.finish(); }

 private:
  std::shared_ptr<ServedDevices> served_;
  std::string caller_;
  std::shared_ptr<OutgoingDevices> reply_;
};

// The devices of a served call, determined by the first caller of this function. Null: no devices.
std::shared_ptr<ServedDevices> devices_of(rpc::IncomingCall& call, const AgentDevices& agent) {
  if (auto known = call.slots().share<ServedDevices>()) return known;
  const auto section = call.message().section(devices_section);
  if (!section && agent.accelerators().empty()) return nullptr;
  auto served = std::make_shared<ServedDevices>();
  std::vector<c10::Device> devices = agent.accelerators();
  if (section) {
    const DeviceMap map = DeviceMap::of(rpc::Codec<Names>::decode(*section));
    for (const DeviceMap::Pair& pair : map.pairs()) {
      agent.check(pair.there, "the device map of '" + call.peer().id.name + "' for this agent");
      if (!pair.there.is_cpu() && std::find(devices.begin(), devices.end(), pair.there) == devices.end())
        devices.push_back(pair.there);
    }
    served->back = map.inverse();
  }
  served->streams = std::make_shared<CallStreams>(devices);
  call.slots().put(served);
  if (section) {
    call.message().slots().put(
        std::make_shared<IncomingDevices>(IncomingDevices{served->streams->streams(), served->back}));
    call.add_part(std::make_shared<ReplyPart>(served, call.peer().id.name));
  }
  return served;
}

// The caller's part.
class RequestPart final : public rpc::CallPart {
 public:
  RequestPart(DeviceMap map, std::string peer, std::vector<c10::Stream> given)
      : peer_(std::move(peer)), given_(std::move(given)) {
    use(std::move(map));
  }

  void use(DeviceMap map) {
    map_ = std::move(map);
    streams_.clear();
    for (const DeviceMap::Pair& pair : map_.pairs()) {
      if (pair.here.is_cpu()) continue;
      const auto given = std::find_if(given_.begin(), given_.end(), [&](const c10::Stream& stream) {
        return stream.device() == pair.here;
      });
      streams_.push_back(given != given_.end() ? *given : current_stream(pair.here));
    }
  }

  void write(rpc::OutgoingMessage& message) override {
    request_ = std::make_shared<OutgoingDevices>(OutgoingDevices{map_, peer_, {}, {}, false});
    message.slots().put(request_);
  }
  void seal(rpc::OutgoingMessage& message) override {
    request_->copies.finish();
    // A callee without the device layer can serve calls whose tensors stay on the CPU.
    rpc::Codec<Names>::encode(message.section(devices_section, request_->places), map_.names());
  }
  void read(rpc::IncomingMessage& reply) override {
    reply.slots().put(std::make_shared<IncomingDevices>(IncomingDevices{streams_, map_}));
  }

 private:
  DeviceMap map_;
  std::string peer_;
  std::vector<c10::Stream> given_;    // used instead of the current streams
  std::vector<c10::Stream> streams_;  // on which results arrive
  std::shared_ptr<OutgoingDevices> request_;
};

// Adds the caller's part to every call to a peer that has a map.
class Maps final : public rpc::Interceptor {
 public:
  explicit Maps(std::shared_ptr<const AgentDevices> devices) : devices_(std::move(devices)) {}

  std::unique_ptr<rpc::CallWatch> calling(rpc::OutgoingCall& call, const std::string& peer,
                                          rpc::CallContext* serving) override {
    const DeviceMap& map = devices_->map_for(peer);
    if (map.empty()) return nullptr;
    const auto part = std::make_shared<RequestPart>(map, peer, streams_of(serving));
    call.slots().put(part);
    call.add_part(part);
    return nullptr;
  }

 private:
  // Results that are fetched for a call whose handler has not started arrive on the streams of that handler.
  std::vector<c10::Stream> streams_of(rpc::CallContext* serving) const {
    auto* incoming = dynamic_cast<rpc::IncomingCall*>(serving);
    if (incoming == nullptr || incoming->began()) return {};
    try {
      const auto served = devices_of(*incoming, *devices_);
      return served != nullptr ? served->streams->streams() : std::vector<c10::Stream>{};
    } catch (const rpc::Error&) {
      return {};  // the call itself fails with the error
    }
  }
  std::shared_ptr<const AgentDevices> devices_;
};

class Devices final : public rpc::CallHook {
 public:
  explicit Devices(std::shared_ptr<const AgentDevices> devices) : devices_(std::move(devices)) {}
  bool knows(std::string_view section) const override { return section == devices_section; }
  void incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) override {
    devices_of(*call, *devices_);
    next();
  }
  void world_complete(const std::vector<std::string>& members) override { devices_->check_names(members); }

 private:
  std::shared_ptr<const AgentDevices> devices_;
};

}  // namespace

void add_device_layer(rpc::Agent& agent, DeviceOptions options) {
  const auto devices = std::make_shared<AgentDevices>(std::move(options));
  agent.core()->layers().put(devices);
  agent.core()->hooks().add(std::make_shared<Devices>(devices));
  agent.core()->hooks().add_context(
      [devices](rpc::IncomingCall& call) -> std::unique_ptr<rpc::ContextSwitch> {
        const auto served = devices_of(call, *devices);
        return served != nullptr ? make_stream_context(served->streams) : nullptr;
      });
  if (devices->maps()) agent.core()->hooks().add_interceptor(std::make_shared<Maps>(devices));
}

void ByDeviceMap::apply(rpc::OutgoingCall& call) const {
  if (map_.empty()) return;
  if (auto* part = call.slots().find<RequestPart>()) return part->use(map_);
  const auto& to = call.message().destination();
  const auto part = std::make_shared<RequestPart>(map_, to != nullptr ? to->name : "the callee",
                                                  std::vector<c10::Stream>{});
  call.slots().put(part);
  call.add_part(part);
}

DeviceMap device_map_back(rpc::IncomingMessage& message) {
  const auto* devices = message.slots().find<IncomingDevices>();
  return devices != nullptr ? devices->back : DeviceMap{};
}

std::vector<c10::Stream> call_streams(rpc::CallContext& call) {
  const auto* served = call.slots().find<ServedDevices>();
  return served != nullptr ? served->streams->streams() : std::vector<c10::Stream>{};
}

void wait_for_arguments(rpc::CallContext& call) {
  for (const c10::Stream& stream : call_streams(call)) stream.synchronize();
}

void use_on_current_streams(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu() || tensor.layout() != at::kStrided) continue;
    c10::impl::VirtualGuardImpl(tensor.device().type())
        .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
  }
}

}  // namespace weft::tensor
