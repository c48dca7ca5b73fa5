// BackwardService: what workers say to each other during the backward of a pass. docs/dist_autograd.md has
// the protocol.
//
//   close     fast: no new calls; waits until those under way have ended here, then closes those that this
//             worker met; answers with everybody below it that takes part
//   root      of a tensor behind an RRef: the backward starts there too
//   cancel    the backward was refused before any of its nodes ran: the pass is as before it. In fast the
//             worker asks this of all that it met
//   begin     a stage of the backward (backward.h), from its initiator
//   gradients of one message's tensors, from its receiver to its sender; some travel in an answer instead
//             (Report::returned)
//   discover  the roots depend on these messages, from their receiver to their sender
//   finish    the backward is over; answers with what was never reached
//   release   the pass is over
//   graph     this worker's part of the pass's graph, for drawing
//
// begin, gradients and discover are answered when all that they set off is over (termination.h).
#pragma once

#include <weft/dist_autograd/pass_graph.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/rpc/tensor/tensor_codec.h>

namespace weft::dist_autograd {

struct WEFT_EXPORT BackwardService {
  rpc::Future<std::vector<rpc::AgentId>> close(rpc::CallContext& call, PassId pass, Backward backward);
  rpc::Future<void> root(rpc::CallContext& call, PassId pass, Backward backward, at::Tensor gradient);
  rpc::Future<void> cancel(rpc::CallContext& call, PassId pass, Backward backward);
  rpc::Future<Report> begin(rpc::CallContext& call, PassId pass, Backward backward, Stage stage);
  rpc::Future<Report> gradients(rpc::CallContext& call, PassId pass, Backward backward, MessageId message,
                                std::vector<at::Tensor> gradients);
  rpc::Future<Report> discover(rpc::CallContext& call, PassId pass, Backward backward,
                               std::vector<MessageId> messages);
  rpc::Future<std::vector<std::string>> finish(PassId pass, BackwardId backward);
  void release(rpc::CallContext& call, PassId pass, std::string error);
  WorkerGraph graph(PassId pass);

  using Service = rpc::Service<"weft.autograd", rpc::Method<"close", &BackwardService::close, rpc::resumable>,
                               rpc::Method<"root", &BackwardService::root, rpc::resumable>,
                               rpc::Method<"cancel", &BackwardService::cancel, rpc::resumable>,
                               rpc::Method<"begin", &BackwardService::begin, rpc::resumable>,
                               rpc::Method<"gradients", &BackwardService::gradients, rpc::resumable>,
                               rpc::Method<"discover", &BackwardService::discover, rpc::resumable>,
                               rpc::Method<"finish", &BackwardService::finish, rpc::resumable>,
                               rpc::Method<"release", &BackwardService::release, rpc::resumable>,
                               rpc::Method<"graph", &BackwardService::graph, rpc::resumable>>;

  std::shared_ptr<AutogradLayer> layer;
};

// Closes the pass on this worker and, unless they were, on all that it met; gives everybody that takes part.
rpc::Future<std::vector<rpc::AgentId>> close_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                                        const std::shared_ptr<PassState>& pass,
                                                        Backward backward, bool initiator);

// Ends this worker's share in a backward of which no node has run and, in fast, those of all that it met.
rpc::Future<void> cancel_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                    const std::shared_ptr<PassState>& pass, Backward backward);

}  // namespace weft::dist_autograd
