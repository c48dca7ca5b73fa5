// BackwardService: what workers say to each other during the backward of a pass. docs/dist_autograd.md has
// the protocol.
//
//   close     no new calls; waits until those under way have ended here, then closes those that this worker
//   met;
//             answers with everybody below it that takes part
//   root      of a tensor behind an RRef: the backward starts there too
//   start     run from the roots; answered when all that it set off is over (termination.h)
//   gradients of one message's tensors, from its receiver to its sender; answered likewise
//   finish    the backward is over; answers with what was never reached
//   release   the pass is over
#pragma once

#include <weft/dist_autograd/pass_state.h>
#include <weft/rpc/tensor/tensor_codec.h>

namespace weft::dist_autograd {

struct WEFT_EXPORT BackwardService {
  rpc::Future<std::vector<rpc::AgentId>> close(rpc::CallContext& call, PassId pass, BackwardOptions options);
  rpc::Future<void> root(rpc::CallContext& call, PassId pass, at::Tensor gradient);
  rpc::Future<void> start(PassId pass);
  rpc::Future<void> gradients(PassId pass, MessageId message, std::vector<at::Tensor> gradients);
  rpc::Future<std::vector<std::string>> finish(PassId pass);
  void release(rpc::CallContext& call, PassId pass, std::string error);

  using Service =
      rpc::Service<"weft.autograd", rpc::Method<"close", &BackwardService::close>,
                   rpc::Method<"root", &BackwardService::root>, rpc::Method<"start", &BackwardService::start>,
                   rpc::Method<"gradients", &BackwardService::gradients>,
                   rpc::Method<"finish", &BackwardService::finish>,
                   rpc::Method<"release", &BackwardService::release>>;

  std::shared_ptr<Context> context;
};

// Closes the pass on this worker and, unless they were, on all that it met; gives everybody that takes part.
rpc::Future<std::vector<rpc::AgentId>> close_everywhere(const std::shared_ptr<Context>& context,
                                                        const std::shared_ptr<PassState>& pass,
                                                        BackwardOptions options, bool initiator);

}  // namespace weft::dist_autograd
