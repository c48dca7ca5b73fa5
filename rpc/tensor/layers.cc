#include <weft/rpc/tensor/layers.h>

#include <weft/rpc/tensor/tensor_hook.h>
#include <weft/rpc/tensor/thread_state.h>

namespace weft::tensor {

rpc::Layers layers() {
  return {[](rpc::Agent& agent) {
    agent.core()->add_context(
        [](rpc::IncomingCall& call) { return make_thread_state(call.slots().find<WithGrad>() != nullptr); });
  }};
}

}  // namespace weft::tensor
