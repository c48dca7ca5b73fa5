// BackwardShare: one worker's share of one backward of a pass. It has the executor of the nodes and the
// messages that wait for gradients, and it detects when all work that the share started has completed.
//
// Owned by the PassState. Not thread-safe: all calls run on the serial executor of that pass. A failure ends
// the share: pending requests, and later calls that can fail, then fail with the same error.
#pragma once

#include <weft/dist_autograd/backward.h>
#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/engine/internal/node_executor.h>
#include <weft/dist_autograd/internal/termination.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/tensor/device_map.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

namespace weft::dist_autograd {

class PassState;

class BackwardShare final : public std::enable_shared_from_this<BackwardShare> {
 public:
  // Receives the worker's report of a stage, or the error that ended the share.
  using Done = rpc::UniqueFunction<void(rpc::Result<Report>)>;

  // sends: every message of the pass that left this worker; any of them may get gradients.
  BackwardShare(PassState& pass, Backward backward, std::map<MessageId, NodePtr> sends);

  // The backward to which this share belongs.
  const Backward& backward() const { return backward_; }

  // gradient: of the root's shape; may be undefined for a scalar. Throws error() if the share has failed.
  void add_root(const at::Tensor& root, at::Tensor gradient);

  // Called at the initiator. Starts a stage on these workers, which may include this one, and calls `done`
  // when the stage has completed on all workers. trace: the trace of the work.
  void lead(Stage stage, const std::vector<rpc::AgentId>& workers, const Trace& trace, Done done);
  // begin(), deliver() and discover() are requests, each acknowledged as described in termination.h.
  // RequestSource: the worker that sent the request, and the trace of the request.
  struct RequestSource {
    rpc::AgentId sender;
    Trace trace;
  };
  void begin(Stage stage, const RequestSource& source, Done acknowledge);
  void deliver(const MessageId& message, std::vector<at::Tensor> gradients, const RequestSource& source,
               Done acknowledge);
  void discover(const std::vector<MessageId>& messages, const RequestSource& source, Done acknowledge);

  // Called by a node that runs here, with the gradients of the tensors that arrived with a message. If `to`
  // has engaged this worker (termination.h) and the acknowledgement to `to` is due at once, the
  // acknowledgement contains the gradients: one message instead of two. back: the devices of the gradients at
  // `to`; if empty, the agent's device map applies.
  void send_gradients(const rpc::AgentId& to, const MessageId& message, std::vector<at::Tensor> gradients,
                      const tensor::DeviceMap& back);

  // Called by a hook or a node that runs here. The last stage of the share lasts until `work` has completed.
  void complete_after(rpc::Future<void> work);

  // Runs the nodes that PassTurns now permits.
  void take_turn();

  const std::exception_ptr& error() const { return error_; }  // null: the share has not failed
  // The nodes that wait for gradients which have not arrived, by name.
  std::vector<std::string> unreached() const {
    return executor_ == nullptr ? std::vector<std::string>{} : executor_->blocked();
  }
  // Ends the share with this error, unless it has ended.
  void fail(const std::exception_ptr& error);
  // Returns the messages with which the share was created. Call it before any node has run; no other call may
  // follow.
  std::map<MessageId, NodePtr> take_sends();

 private:
  struct Send {
    NodePtr node;
    bool live = false;       // the roots depend on it
    bool delivered = false;  // its gradients were delivered, or will never arrive
  };

  // Accepts a message and calls `work`, which executes the request. The message is acknowledged now or later.
  template <class Work>
  void take_in(const std::optional<rpc::AgentId>& sender, const Trace& trace, Done acknowledge, Work work);
  // Sends a message of this backward, which the receiver acknowledges. way: the device map of its arguments;
  // null: no map.
  template <auto Method, class... Given>
  void tell(const rpc::AgentId& worker, const rpc::CallModifier* way, Given&&... given);
  void acknowledged(rpc::Result<Report> report);
  void take(const MessageId& message, std::vector<at::Tensor> gradients);

  void enter(Stage stage);
  void plan();
  void run();
  void run_weights();
  void run_nodes(const std::function<void(rpc::ContextSwitch*)>& run);
  void after_turn();  // after all work: records the nodes that have run, and runs the weight part on request
  void note(torch::autograd::Node& node);  // exploring has reached the node
  void announce();                         // notifies the senders of the messages in found_
  void finalize();
  void settle();  // acknowledges, if all work that was started has completed

  PassState& pass_;
  const Backward backward_;
  std::map<MessageId, Send> sends_;
  std::unique_ptr<NodeExecutor> executor_;
  bool planned_ = false;
  bool finalized_ = false;
  bool run_held_ = false, weights_held_ = false;  // run() and run_weights() wait for their turns
  std::vector<rpc::Future<void>> work_;           // the last stage waits for it
  std::exception_ptr error_;
  std::map<rpc::AgentId, std::vector<MessageId>> found_;  // live messages, by sender; for announce()
  Termination<Done> termination_;
  std::optional<rpc::AgentId> engaged_by_;  // nullopt: not engaged, or engaged by this worker itself
  std::vector<Returned> held_;              // gradients for the worker that engaged this one
  std::set<rpc::AgentId> workers_;          // workers whose shares were started, for the report
  bool waiting_ = false;                    // some worker that this one engaged waits for gradients
  Trace trace_;                             // of the work that runs now
};

}  // namespace weft::dist_autograd
