// BackwardShare: one worker's share of one backward of a pass: the executor of its nodes, the messages that
// wait for gradients, and whether all that it set off is over.
//
// Owned by the PassState, whose serial executor alone uses it: not thread-safe. A failure ends it: whoever
// waits is told, and all further use is that error.
#pragma once

#include <weft/dist_autograd/backward.h>
#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/engine/node_executor.h>
#include <weft/dist_autograd/termination.h>
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
  using Done = rpc::UniqueFunction<void(rpc::Result<Report>)>;

  // sends: every message of the pass that left this worker, any of which may get gradients.
  BackwardShare(PassState& pass, Backward backward, std::map<MessageId, NodePtr> sends);

  const Backward& backward() const { return backward_; }

  void add_root(const at::Tensor& root, at::Tensor gradient);

  // The initiator's: sets these workers, this one perhaps among them, to a stage; done when it is over
  // everywhere. trace: what the work stands in.
  void lead(Stage stage, const std::vector<rpc::AgentId>& workers, const Trace& trace, Done done);
  // What other workers ask of this one; each is acknowledged as termination.h says.
  struct Asked {
    rpc::AgentId by;
    Trace trace;
  };
  void begin(Stage stage, const Asked& asked, Done acknowledge);
  void deliver(const MessageId& message, std::vector<at::Tensor> gradients, const Asked& asked,
               Done acknowledge);
  void discover(const std::vector<MessageId>& messages, const Asked& asked, Done acknowledge);

  // From a node that runs here: the gradients of what arrived with a message. Those for the worker whose
  // message set this one to work go with its acknowledgement, where that is given at once: one way instead of
  // two. back: where the gradients' devices are at `to`; empty: as for any call to it.
  void send_gradients(const rpc::AgentId& to, const MessageId& message, std::vector<at::Tensor> gradients,
                      const tensor::DeviceMap& back);

  // From a hook or a node that runs here: the share's last stage lasts until this work is done.
  void complete_after(rpc::Future<void> work);

  // Runs what PassTurns lets run now.
  void take_turn();

  const std::exception_ptr& error() const { return error_; }  // null: it has not failed
  std::vector<std::string> unreached() const {
    return executor_ == nullptr ? std::vector<std::string>{} : executor_->blocked();
  }
  void fail(const std::exception_ptr& error);
  // Before any node has run: gives back the messages that the share was made with. Last use.
  std::map<MessageId, NodePtr> take_sends();

 private:
  struct Send {
    NodePtr node;
    bool live = false;       // the roots depend on it
    bool delivered = false;  // or abandoned
  };

  // A message is taken in: `work` does what it asks for; then it is acknowledged, now or later.
  template <class Work>
  void take_in(const std::optional<rpc::AgentId>& by, const Trace& trace, Done acknowledge, Work work);
  // Sends a message of this backward, to be acknowledged. way: how its arguments travel; null: as they are.
  template <auto Method, class... Given>
  void tell(const rpc::AgentId& worker, const rpc::CallModifier* way, Given&&... given);
  void acknowledged(rpc::Result<Report> report);
  void take(const MessageId& message, std::vector<at::Tensor> gradients);

  void enter(Stage stage);
  void plan();
  void run();
  void run_weights();
  void run_nodes(const std::function<void(rpc::ContextSwitch*)>& run);
  void after_turn();  // once all is settled: notes what has run, and runs the weight part on request
  void note(torch::autograd::Node& node);  // found by exploring
  void announce();                         // tells the senders of what was found
  void finalize();
  void settle();  // acknowledges, if all that was set off has ended

  PassState& pass_;
  const Backward backward_;
  std::map<MessageId, Send> sends_;
  std::unique_ptr<NodeExecutor> executor_;
  bool planned_ = false;
  bool finalized_ = false;
  bool run_held_ = false, weights_held_ = false;  // run() and run_weights() wait for their turns
  std::vector<rpc::Future<void>> work_;           // that the last stage waits for
  std::exception_ptr error_;
  std::map<rpc::AgentId, std::vector<MessageId>> found_;  // by exploring, to be announced to their senders
  Termination<Done> termination_;
  std::optional<rpc::AgentId> engaged_by_;  // none: by this worker itself, or by nobody
  std::vector<Returned> held_;              // for who engaged it
  std::set<rpc::AgentId> workers_;          // that were set to work, to be reported
  bool waiting_ = false;                    // somebody below waited
  Trace trace_;                             // what the work at hand stands in
};

}  // namespace weft::dist_autograd
