#include <weft/rpc/tensor/layers.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/tensor/creation_turn.h>
#include <weft/rpc/tensor/device_layer.h>
#include <weft/rpc/tensor/tensor_hook.h>
#include <weft/rpc/tensor/thread_state.h>

#include <c10/util/Exception.h>

namespace weft::tensor {
namespace {

// The callee's stack is of no interest to a caller.
std::optional<std::string> without_backtrace(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

rpc::Layers layers(DeviceOptions devices) {
  return {[devices = std::move(devices)](rpc::Agent& agent) {
    add_creation_turn(agent);
    add_device_layer(agent, devices);
    agent.core()->hooks().add_context(
        [](rpc::IncomingCall& call) { return make_thread_state(call.slots().find<WithGrad>() != nullptr); });
    agent.core()->hooks().add_explanation(&without_backtrace);
  }};
}

}  // namespace weft::tensor
