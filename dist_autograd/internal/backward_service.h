// BackwardService: the messages between workers during the backward of a pass. docs/dist_autograd.md has the
// protocol.
//
//   close     fast mode: wait until the calls of the pass that are in flight here have completed; then accept
//             no new calls, and send `close` to the workers with which this worker exchanged calls. The reply
//             lists this worker and the workers in the replies to its own `close`. If the pass was already
//             closed here, the reply is empty
//   root      the backward also starts at a tensor of this worker, behind an RRef
//   cancel    the backward was refused before any of its nodes ran: the pass is unchanged. In fast mode the
//             worker forwards `cancel` to all workers with which it exchanged calls
//   begin     a stage of the backward (backward.h), from its initiator
//   gradients the gradients of one message's tensors, from the receiver of the message to its sender; some
//             are sent in a reply instead (Report::returned)
//   discover  the messages on which the roots depend; from the receiver of the messages to their sender
//   finish    the backward is complete; the reply lists this worker's nodes whose gradients never arrived
//   release   the pass has ended
//   graph     this worker's part of the pass's graph, for drawing
//
// The replies to begin, gradients and discover are sent when all work that the message started has completed
// (termination.h).
#pragma once

#include <weft/dist_autograd/internal/pass_graph.h>
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

  using Service = rpc::Service<
      "weft.autograd", rpc::Method<"close", &BackwardService::close>,
      rpc::Method<"root", &BackwardService::root>, rpc::Method<"cancel", &BackwardService::cancel>,
      rpc::Method<"begin", &BackwardService::begin>, rpc::Method<"gradients", &BackwardService::gradients>,
      rpc::Method<"discover", &BackwardService::discover>, rpc::Method<"finish", &BackwardService::finish>,
      rpc::Method<"release", &BackwardService::release>, rpc::Method<"graph", &BackwardService::graph>>;

  // The layer whose passes the methods work on.
  std::shared_ptr<AutogradLayer> layer;
};

// Closes the pass on this worker, then on the workers with which it exchanged calls, and so on. Returns the
// workers on which this call has closed the pass. initiator: true if this worker is the initiator of the
// backward. It then waits only for its own calls, because it may itself serve a call of the pass, and the
// result is all participants.
rpc::Future<std::vector<rpc::AgentId>> close_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                                        const std::shared_ptr<PassState>& pass,
                                                        Backward backward, bool initiator);

// Ends this worker's share in a backward in which no node has run. In fast mode, also ends the shares of all
// workers with which this worker exchanged calls.
rpc::Future<void> cancel_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                    const std::shared_ptr<PassState>& pass, Backward backward);

}  // namespace weft::dist_autograd
