#include <weft/parallel/collectives/collectives_layer.h>

#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/parallel/collectives/internal/group/group_service.h>
#include <weft/rpc/endpoint/agent_core.h>

namespace weft::collectives {

rpc::Layer layer(nccl::DevicesOptions devices) {
  return [devices = std::move(devices)](rpc::Agent& agent) {
    auto layer = std::make_shared<CollectivesLayer>(agent.core(), devices);
    agent.core()->layers().put(layer);
    agent.core()->hooks().add(layer);
    auto service = std::make_shared<GroupService>();
    service->layer = layer;
    agent.serve(service);
  };
}

}  // namespace weft::collectives
